package device

import (
	"fmt"
	"slices"
	"strings"
)

// Shape holds a tensor's sizes, outermost first. The empty Shape is that of a scalar.
type Shape []int

// Len returns the number of elements, which is 1 for a scalar.
func (s Shape) Len() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Equal reports whether both shapes have the same sizes.
func (s Shape) Equal(o Shape) bool { return slices.Equal(s, o) }

func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, d)
	}
	b.WriteByte(']')
	return b.String()
}
