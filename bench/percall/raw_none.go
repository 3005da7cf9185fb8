//go:build !(cgo && linux)

package main

import (
	"context"
	"errors"
	"time"

	"github.com/goddp/goddp/comm"
)

func openRaw(context.Context, *comm.ProcessGroup, gpu, time.Duration) (plain, evented side, leave func() error, err error) {
	return side{}, side{}, nil, errors.New("this program was built without NCCL, which needs Linux and cgo")
}
