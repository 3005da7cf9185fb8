//go:build cgo && linux

// Command libraries builds fake versions of CUDA's libraries in an existing folder. It prints the
// variables by which programs open them:
//
//	mkdir /tmp/gpu && eval $(go run ./internal/testkit/fakegpu/libraries /tmp/gpu)
//	GODDP_DEVICE=cuda go run ./cmd/golaunch --nproc-per-node 1 ./examples/toy
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: libraries DIR")
		os.Exit(2)
	}
	dir, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = fakegpu.Libraries(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range fakegpu.Variables {
		fmt.Printf("export %s=%q\n", name, os.Getenv(name))
	}
}
