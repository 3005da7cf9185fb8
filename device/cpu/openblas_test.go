//go:build cgo && unix

package cpu

import "testing"

// On a processor that OpenBLAS does not know it computes with the kernels of one that it knows.
func TestOpenBLASUsesTheProcessor(t *testing.T) {
	best := bestCore()
	if best == "" {
		t.Skip("needs AVX2")
	}
	lib, err := openBLAS()
	if err != nil {
		t.Skipf("needs OpenBLAS: %v", err)
	}
	if o := lib.(*openblas); o.core == "Prescott" {
		t.Errorf("%v, want %s or better", o, best)
	}
}
