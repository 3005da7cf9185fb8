package ddp

import (
	"fmt"
	"os"
	"strconv"
)

// nanCheckVars switch Options.CheckNonFinite on from outside a program: ours,
// and PyTorch's. The first that is set counts.
var nanCheckVars = []string{"GODDP_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"}

// nanCheck is what they say.
func nanCheck() (bool, error) {
	for _, name := range nanCheckVars {
		if v := os.Getenv(name); v != "" {
			on, err := strconv.ParseBool(v)
			if err != nil {
				return false, fmt.Errorf("%s is %q, neither 0 nor 1", name, v)
			}
			return on, nil
		}
	}
	return false, nil
}
