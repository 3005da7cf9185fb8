//go:build !(cgo && unix && amd64)

package cpu

import (
	"errors"
	"log/slog"
	"runtime"
)

// oneDNN is never open.
type oneDNN struct{}

type convPlan struct{ size int }

// openOneDNN fails, because opening a shared library needs cgo. On other processors oneDNN has not been measured.
func openOneDNN(*slog.Logger) (*oneDNN, error) {
	if runtime.GOARCH != "amd64" {
		return nil, nil
	}
	return nil, errors.New("built without cgo")
}

func (*oneDNN) plan(convolution) (*convPlan, error) { return nil, errUnable }

func (*oneDNN) run(_ *convPlan, _, _, _, _, _ *float32) error { return errUnable }
