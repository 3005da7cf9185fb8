//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

const forever = 1 << 30

// scenarios are the functions that worker processes can run, by name.
var scenarios = map[string]func(m *backendtest.Rank) error{
	"collectives":      backendtest.Collectives,
	"exchange":         func(m *backendtest.Rank) error { return backendtest.Exchange(m, false) },
	"group":            func(m *backendtest.Rank) error { return backendtest.Exchange(m, true) },
	"forever":          func(m *backendtest.Rank) error { return backendtest.ReduceRounds(m, 1000, forever, time.Minute) },
	"forever-wide":     func(m *backendtest.Rank) error { return backendtest.ReduceRounds(m, wide, forever, time.Minute) },
	"forever-big":      func(m *backendtest.Rank) error { return backendtest.ReduceRounds(m, large, forever, time.Minute) },
	"lonely":           func(m *backendtest.Rank) error { return lonely(m, 1000) },
	"lonely-wide":      func(m *backendtest.Rank) error { return lonely(m, wide) },
	"lonely-big":       func(m *backendtest.Rank) error { return lonely(m, large) },
	"small":            smallAllReduces,
	"one-gpu":          fewRanksOnOneGPU,
	"buckets":          buckets,
	"memory":           func(m *backendtest.Rank) error { return churn(m, 64<<20) },
	"latency":          latency,
	"leave":            leave,
	"hosted-resumed-1": func(m *backendtest.Rank) error { return resumed(m, 1) },
	"resumed-10":       func(m *backendtest.Rank) error { return resumed(m, 10) },
	"resumed-50":       func(m *backendtest.Rank) error { return resumed(m, 50) },
}

// fewRanksOnOneGPU runs several ranks on one GPU. They need no P2P.
func fewRanksOnOneGPU(m *backendtest.Rank) error {
	if err := errors.Join(os.Unsetenv("NCCL_P2P_DISABLE"), os.Unsetenv("NCCL_P2P_LEVEL")); err != nil {
		return err
	}
	return ranksOnOneGPU(m.Device, 2, 3, 4)
}

// lonely lets rank 0 reduce alone, with a timeout. It prints the error and how long after the
// deadline it came.
func lonely(m *backendtest.Rank, count int) error {
	c, err := m.Ones(count)
	if err != nil {
		return err
	}
	if err := m.Run(c); err != nil { // makes all connections
		return err
	}
	if m.Rank > 0 {
		task, err := m.Enqueue(&backend.Call{Kind: backend.Recv, Dst: c.Dst, Root: 0, Timeout: time.Minute})
		if err != nil {
			return err
		}
		fmt.Println("peer:", task.Sync(context.Background()))
		return nil
	}
	again := *c
	again.Timeout = 2 * time.Second
	at := time.Now()
	err = m.Run(&again)
	fmt.Printf("late: %v: %v\n", time.Since(at)-again.Timeout, err)
	at = time.Now()
	err = backendtest.CloseAll([]*backendtest.Rank{m}, 10*time.Second)
	fmt.Printf("closed: %v: %v\n", time.Since(at), err)
	return nil
}

// leave lets rank 1 close while the others neither call nor close. The others then go on without
// it, and close.
func leave(m *backendtest.Rank) error {
	c, err := m.Ones(1000)
	if err != nil {
		return err
	}
	if err := m.Run(c); err != nil {
		return err
	}
	ctx, last := context.Background(), m.Size-1
	if m.Rank == 1 {
		at := time.Now()
		err := backendtest.CloseAll([]*backendtest.Rank{m}, soon)
		fmt.Printf("closed: %v: %v\n", time.Since(at), err)
		_, gatherErr := m.Control.Gather(ctx, "left", nil)
		return errors.Join(err, gatherErr)
	}
	if _, err := m.Control.Gather(ctx, "left", nil); err != nil {
		return err
	}
	switch {
	case m.Size == 2:
	case m.Rank == 0:
		err = m.Run(&backend.Call{Kind: backend.Send, Src: c.Src, Root: last})
	case m.Rank == last:
		err = m.Run(&backend.Call{Kind: backend.Recv, Dst: c.Dst, Root: 0})
	}
	return errors.Join(err, backendtest.CloseAll([]*backendtest.Rank{m}, soon))
}

// The streams run with random delays. A call must read what the compute stream wrote before its
// After event, the compute stream must read what the call wrote before its Join, and calls must not
// overtake each other.
func TestEmulatedStreamsKeepOrder(t *testing.T) {
	for seed := range 6 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			lines, isSmall := []string{"delay 300", fmt.Sprint("seed ", seed)}, seed%2 == 1
			if isSmall {
				lines = append(lines, mapping)
			}
			control(t, lines...)
			members := world(t, 2)
			if why := nccl.SmallAllReduceDisabled(members[0].Backend); isSmall != (why == nil) {
				t.Errorf("small all-reduces: want %v: %v", isSmall, why)
			}
			for _, f := range []func(*backendtest.Rank) error{buckets, swaps} {
				if err := backendtest.Each(members, f); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// buckets fills and reduces several buckets, each again as soon as it was read, like the steps of a
// training. NCCL reduces the last one.
func buckets(m *backendtest.Rank) error {
	const count, steps = 1000, 5
	dtypes := []device.DType{device.Float32, device.Float64, device.Float32, device.Int32}
	tensors := make([]device.Tensor, len(dtypes))
	for i, dt := range dtypes {
		var err error
		if tensors[i], err = m.Upload(backendtest.HostTensor(dt, count)); err != nil {
			return err
		}
	}
	for step := range steps {
		tasks := make([]backend.Task, len(tensors))
		for i, b := range tensors {
			h := backendtest.HostTensor(b.DType, count)
			for j := range count {
				backendtest.Put(h, j, float64(step*100+i*10+m.Rank))
			}
			if err := m.Device.CopyIn(m.Device.Compute(), b.Buf, h.Buf.Host()); err != nil {
				return err
			}
			var err error
			if tasks[i], err = m.Enqueue(&backend.Call{Kind: backend.AllReduce, Dst: b, Src: b, Timed: true}); err != nil {
				return err
			}
		}
		var before time.Time
		for i, b := range tensors {
			if err := tasks[i].Join(context.Background(), m.Device.Compute()); err != nil {
				return err
			}
			got, err := m.Download(b)
			if err != nil {
				return err
			}
			want := float64(m.Size*(step*100+i*10) + m.Size*(m.Size-1)/2)
			for j := range count {
				if v := backendtest.Get(got, j); v != want {
					return fmt.Errorf("step %d, bucket %d, element %d is %v, want %v", step, i, j, v, want)
				}
			}
			began, done := tasks[i].Span()
			if began.Before(before) || done.Before(began) {
				return fmt.Errorf("step %d, bucket %d ran from %v to %v, after one that ended at %v", step, i, began, done, before)
			}
			before = done
		}
	}
	return nil
}

// swaps lets two ranks swap tensors by groups of calls. Each call in a group waits for an event that the group itself does
// not wait for.
func swaps(m *backendtest.Rank) error {
	const count = 1000
	h := backendtest.HostTensor(device.Float32, count)
	mine, err := m.Upload(h)
	if err != nil {
		return err
	}
	theirs, err := m.Upload(h)
	if err != nil {
		return err
	}
	for step := range 5 {
		before := m.Device.Compute().Record()
		for i := range count {
			backendtest.Put(h, i, float64(step*10+m.Rank))
		}
		if err := m.Device.CopyIn(m.Device.Compute(), mine.Buf, h.Buf.Host()); err != nil {
			return err
		}
		written := m.Device.Compute().Record()
		task, err := m.Enqueue(&backend.Call{Kind: backend.Group, After: before, Calls: []*backend.Call{
			{Kind: backend.Send, Src: mine, Root: 1 - m.Rank, After: written}, {Kind: backend.Recv, Dst: theirs, Root: 1 - m.Rank, After: written},
		}})
		if err != nil {
			return err
		}
		if err := task.Join(context.Background(), m.Device.Compute()); err != nil {
			return err
		}
		got, err := m.Download(theirs)
		if err != nil {
			return err
		}
		for i := range count {
			if v, want := backendtest.Get(got, i), float64(step*10+1-m.Rank); v != want {
				return fmt.Errorf("step %d: element %d is %v, want %v", step, i, v, want)
			}
		}
	}
	return nil
}

// A call that is timed tells when its data was ready, although the call before it was not timed.
func TestEmulatedTimedCallTellsWhenItBegan(t *testing.T) {
	control(t, mapping)
	members := world(t, 2)
	if err := backendtest.Each(members, func(m *backendtest.Rank) error {
		c, err := m.Ones(1000)
		if err == nil {
			err = m.Run(c)
		}
		if err != nil {
			return err
		}
		compute, host := m.Device.Compute(), backendtest.HostTensor(device.Float32, 1<<20)
		x, err := m.Upload(host)
		for range 50 {
			err = errors.Join(err, m.Device.CopyIn(compute, x.Buf, host.Buf.Host()))
		}
		ready := compute.Record()
		c.After, c.Timed = ready, true
		task, err := m.Enqueue(c)
		started := time.Now() // on a busy machine the data may have been ready before
		if err == nil {
			err = task.Sync(t.Context())
		}
		if err != nil {
			return err
		}
		at, latest := ready.Time(), started
		if at.After(started) {
			latest = at
		}
		if began, done := task.Span(); began.Before(at) || began.After(latest) || done.Before(began) {
			return fmt.Errorf("the call ran from %v to %v after its data was ready, want it to begin until %v", began.Sub(at), done.Sub(at), latest.Sub(at))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
