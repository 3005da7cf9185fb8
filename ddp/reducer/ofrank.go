package reducer

import (
	"fmt"
	"strings"
)

// OfRank returns err as an error of a package that is built on this one, on a rank,
// which it names unless err does.
func OfRank(by string, rank int, err error) error {
	of := fmt.Sprintf("rank %d: ", rank)
	if strings.Contains(err.Error(), of) {
		of = ""
	}
	return fmt.Errorf("%s: %s%w", by, of, err)
}
