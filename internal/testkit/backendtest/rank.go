package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
)

// Soon bounds waits for what should happen at once, on a busy machine.
const Soon = time.Minute

// Rank is one rank of a group under test.
type Rank struct {
	backend.Backend
	Rank, Size int
	Device     device.Device
	Control    *coordinator.Group
	// AvgTolerance is the allowed error of an average of each type, for numbers of ranks that are
	// not a power of two. nil: averages are exact, as package host documents them.
	AvgTolerance map[device.DType]float64

	seq uint64 // number of the latest collective
}

// Each runs f for every rank at once and joins the errors.
func Each(ranks []*Rank, f func(m *Rank) error) error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, m := range ranks {
		wg.Go(func() {
			if err := f(m); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", m.Rank, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Outcomes runs f for every rank at once. It returns each rank's error and the time it took.
func Outcomes(ranks []*Rank, f func(m *Rank) error) ([]error, time.Duration) {
	errs := make([]error, len(ranks))
	start := time.Now()
	Each(ranks, func(m *Rank) error {
		errs[m.Rank] = f(m)
		return nil
	})
	return errs, time.Since(start)
}

// CloseAll closes every rank's end of the group, at once.
func CloseAll(ranks []*Rank, timeout time.Duration) error {
	return Each(ranks, func(m *Rank) error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return m.Close(ctx)
	})
}

// Enqueue numbers a call and starts it after the work on the compute stream. The call is aborted
// when its timeout passes.
func (m *Rank) Enqueue(c *backend.Call) (backend.Task, error) {
	if c.Kind != backend.Send && c.Kind != backend.Recv {
		m.seq++
		c.Seq = m.seq
	}
	if c.After == nil {
		c.After = m.Device.Compute().Record()
	}
	task, err := m.Start(c)
	if err == nil {
		Deadline(m, m.Rank, c, task)
	}
	return task, err
}

// Run runs one call to its end.
func (m *Rank) Run(c *backend.Call) error {
	task, err := m.Enqueue(c)
	if err != nil {
		return err
	}
	return task.Sync(context.Background())
}

// HostTensor returns n zeros in Go's memory.
func HostTensor(dt device.DType, n int) device.Tensor {
	return device.NewTensor(device.HostBuffer(make([]byte, n*dt.Size()), nil), dt, n)
}

// Upload copies a host tensor to memory from Alloc.
func (m *Rank) Upload(h device.Tensor) (device.Tensor, error) {
	buf, err := m.Alloc(h.Bytes())
	if err != nil {
		return device.Tensor{}, err
	}
	t := device.NewTensor(buf, h.DType, h.Len())
	return t, m.Device.CopyIn(m.Device.Compute(), t.Buf, h.Buf.Host())
}

// Download copies a tensor to the host, after the work on the compute stream.
func (m *Rank) Download(t device.Tensor) (device.Tensor, error) {
	h := HostTensor(t.DType, t.Len())
	ctx, cancel := context.WithTimeout(context.Background(), Soon)
	defer cancel()
	return h, m.Device.CopyOut(ctx, m.Device.Compute(), h.Buf.Host(), t.Buf)
}

// Ones returns an AllReduce of count ones.
func (m *Rank) Ones(count int) (*backend.Call, error) {
	h := HostTensor(device.Float32, count)
	for i, x := 0, device.Elements[float32](h); i < count; i++ {
		x[i] = 1
	}
	t, err := m.Upload(h)
	return &backend.Call{Kind: backend.AllReduce, Dst: t, Src: t, Name: "ones"}, err
}
