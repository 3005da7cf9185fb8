// Package backendtest has helpers for the tests of backends, and the scenarios that hold for every
// backend.
package backendtest

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/kernels"
)

// Deadline aborts b when call c is not done by its timeout. A call without a timeout has no
// deadline.
func Deadline(b backend.Backend, rank int, c *backend.Call, t backend.Task) {
	if c.Timeout == 0 {
		return
	}
	time.AfterFunc(c.Timeout, func() {
		if state, _ := t.State(); state < backend.Done {
			late := &failure.TimeoutError{After: c.Timeout, Running: state == backend.Running, Waiting: t.Waiting()}
			b.Abort(&failure.CallError{Rank: rank, Call: c.Fingerprint().String(), Name: c.Name, Err: late})
		}
	})
}

// HoldBreaking returns a logger that holds up a backend while its group breaks: when the backend
// logs that the group broke, the logger closes broke and blocks until release is closed. The group
// may break only once.
func HoldBreaking(broke chan<- struct{}, release <-chan struct{}) *slog.Logger {
	return slog.New(&held{slog.DiscardHandler, broke, release})
}

type held struct {
	slog.Handler
	broke   chan<- struct{}
	release <-chan struct{}
}

func (h *held) Enabled(context.Context, slog.Level) bool { return true }

func (h *held) Handle(_ context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, "process group broke") {
		close(h.broke)
		<-h.release
	}
	return nil
}

// Put sets element i of a tensor in host memory.
func Put(t device.Tensor, i int, v float64) {
	switch t.DType {
	case device.Float32:
		device.Elements[float32](t)[i] = float32(v)
	case device.Float64:
		device.Elements[float64](t)[i] = v
	case device.Float16:
		device.Elements[uint16](t)[i] = kernels.F16(float32(v))
	case device.BFloat16:
		device.Elements[uint16](t)[i] = kernels.BF16(float32(v))
	case device.Int32:
		device.Elements[int32](t)[i] = int32(v)
	case device.Int64:
		device.Elements[int64](t)[i] = int64(v)
	case device.Uint8:
		device.Elements[uint8](t)[i] = uint8(v)
	}
}

// Get returns element i of a tensor in host memory.
func Get(t device.Tensor, i int) float64 {
	switch t.DType {
	case device.Float32:
		return float64(device.Elements[float32](t)[i])
	case device.Float64:
		return device.Elements[float64](t)[i]
	case device.Float16:
		return float64(kernels.FromF16(device.Elements[uint16](t)[i]))
	case device.BFloat16:
		return float64(kernels.FromBF16(device.Elements[uint16](t)[i]))
	case device.Int32:
		return float64(device.Elements[int32](t)[i])
	case device.Int64:
		return float64(device.Elements[int64](t)[i])
	default:
		return float64(device.Elements[uint8](t)[i])
	}
}
