package ddp

import (
	"os"

	"github.com/goddp/goddp/internal/jobenv"
)

// nanCheck returns the value of the environment variables that set Options.CheckNonFinite: this
// package's and PyTorch's.
func nanCheck() (bool, error) {
	return jobenv.Bool(os.Getenv, false, jobenv.NaNCheckVars...)
}
