//go:build !(cgo && linux)

package nccl

import (
	"context"
	"errors"

	"github.com/goddp/goddp/internal/backend"
)

func open(context.Context, backend.Config, Options) (backend.Backend, error) {
	return nil, errors.New("this program was built without NCCL, which needs Linux and cgo")
}
