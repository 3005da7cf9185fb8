package ddp

import (
	"fmt"
	"os"
	"strconv"
)

// nanCheckVars are the environment variables that set Options.CheckNonFinite: this package's and
// PyTorch's. The first one that is set counts.
var nanCheckVars = []string{"GODDP_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"}

// nanCheck returns the value of the environment variables.
func nanCheck() (bool, error) {
	for _, name := range nanCheckVars {
		if v := os.Getenv(name); v != "" {
			on, err := strconv.ParseBool(v)
			if err != nil {
				return false, fmt.Errorf("%s is %q, want 0 or 1", name, v)
			}
			return on, nil
		}
	}
	return false, nil
}
