//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

// gpus is the number of real GPUs.
var gpus int

// real skips a test unless the host has n GPUs.
func real(t *testing.T, n int) {
	t.Helper()
	var err error
	if gpus, err = cuda.Count(); gpus < n {
		t.Skipf("%d GPUs, %d are needed: %v", gpus, n, err)
	}
}

// TestGPU runs scenarios on all GPUs, with one process for each.
func TestGPU(t *testing.T) {
	real(t, 2)
	for _, scenario := range []string{"collectives", "small", "exchange", "group", "buckets", "memory"} {
		t.Run(scenario, func(t *testing.T) {
			w := launch(t, "real", gpus, scenario)
			for r := range gpus {
				if how := w.said(r, "ended"); how != "done" {
					t.Errorf("rank %d ended: %s", r, how)
				}
			}
		})
	}
}

// Up to four ranks of one process share one GPU.
func TestGPUSmallAllReduceOnOneGPU(t *testing.T) {
	real(t, 1)
	if how := launch(t, "real", 1, "one-gpu").said(0, "ended"); how != "done" {
		t.Error("it ended: ", how)
	}
}

// Rank 0 reduces and the other ranks do not.
func TestGPUTimeoutAborts(t *testing.T) {
	real(t, 2)
	for _, scenario := range []string{"lonely", "lonely-wide", "lonely-big"} {
		t.Run(scenario, func(t *testing.T) { gpuAbort(t, scenario) })
	}
}

func gpuAbort(t *testing.T, scenario string) {
	w := launch(t, "real", gpus, scenario)
	how := w.said(0, "late")
	t.Log("rank 0 returned after its deadline by ", how)
	late, _, _ := strings.Cut(how, ": ")
	if d, err := time.ParseDuration(late); err != nil || d < 0 || d > lateness || !strings.Contains(how, "timed out after 2s while running") {
		t.Errorf("rank 0: %s, want a timeout within %v of the deadline", how, lateness)
	}
	t.Log("rank 0 closed after ", w.said(0, "closed"))
	for r := range gpus {
		if r > 0 {
			if how := w.said(r, "peer"); !strings.Contains(how, "timed out after 2s while running") {
				t.Errorf("rank %d: %s, want rank 0's cause", r, how)
			}
		}
		if how := w.said(r, "ended"); how != "done" {
			t.Errorf("rank %d ended: %s", r, how)
		}
	}
}

// A process is killed while its peers reduce with it.
func TestGPUKilledRankIsNamed(t *testing.T) {
	real(t, 2)
	for _, scenario := range []string{"forever", "forever-wide", "forever-big"} {
		t.Run(scenario, func(t *testing.T) { gpuPeerDies(t, scenario) })
	}
}

func gpuPeerDies(t *testing.T, scenario string) {
	w := launch(t, "real", gpus, scenario)
	w.awaitRounds()
	w[1].Cmd.Process.Kill()
	at := time.Now()
	for r := range gpus {
		if r == 1 {
			continue
		}
		if how := w.said(r, "ended"); how != "lost 1 false" {
			t.Errorf("rank %d ended: %s", r, how)
		}
	}
	t.Log("the others ended after ", time.Since(at))
}

// Rank 1 leaves while the others neither call nor close.
func TestGPURankLeavesAlone(t *testing.T) {
	real(t, 2)
	w := launch(t, "real", gpus, "leave")
	t.Log("rank 1 closed after ", w.said(1, "closed"))
	for r := range gpus {
		if how := w.said(r, "ended"); how != "done" {
			t.Errorf("rank %d ended: %s", r, how)
		}
	}
}

// TestGPULatencyIsLogged logs the time of an AllReduce.
func TestGPULatencyIsLogged(t *testing.T) {
	real(t, 2)
	w := launch(t, "real", gpus, "latency")
	w.said(0, "ended")
	t.Log(w[0].Stdout())
}

// latency reduces float32s of many sizes in place and prints the median time of a call, on the
// stream and, in parentheses, on the host. The first pair of numbers is for calls that wait for an
// event of the compute stream, as a program's calls do; the second for calls that wait for none.
func latency(m *backendtest.Rank) error {
	const rounds = 7
	ctx := context.Background()
	watch, err := m.Device.NewStream(false)
	if err != nil {
		return err
	}
	defer watch.Close()
	for bytes := 1 << 10; bytes <= 1<<30; bytes <<= 2 {
		buf, err := m.Alloc(bytes)
		if err != nil {
			return err
		}
		x := device.NewTensor(buf, device.Float32, bytes/4)
		line := fmt.Sprint(bytes, " bytes:")
		for _, start := range []func(*backend.Call) (backend.Task, error){m.Enqueue, m.Start} {
			calls := 200
			if bytes >= 1<<24 {
				calls = 20
			}
			var onStream, onHost []time.Duration
			for range rounds {
				runtime.GC() // recycles the events of earlier rounds
				task, err := start(&backend.Call{Kind: backend.Barrier})
				if err != nil {
					return err
				}
				if err := errors.Join(task.Sync(ctx), task.Join(ctx, watch)); err != nil {
					return err
				}
				from := watch.Record()
				at := time.Now()
				for range calls {
					if task, err = start(&backend.Call{Kind: backend.AllReduce, Dst: x, Src: x}); err != nil {
						return err
					}
				}
				onHost = append(onHost, time.Since(at)/time.Duration(calls))
				if err := task.Join(ctx, watch); err != nil {
					return err
				}
				to := watch.Record()
				if err := to.Sync(ctx); err != nil {
					return err
				}
				onStream = append(onStream, to.Time().Sub(from.Time())/time.Duration(calls))
			}
			slices.Sort(onStream)
			slices.Sort(onHost)
			line += fmt.Sprintf(" %8.2f us (host %5.2f)", float64(onStream[rounds/2])/1e3, float64(onHost[rounds/2])/1e3)
		}
		fmt.Println(line)
	}
	return pieces(m)
}

// pieces prints the host's time for each part of a call.
func pieces(m *backendtest.Rank) error {
	stream, err := m.Device.NewStream(true)
	if err != nil {
		return err
	}
	defer stream.Close()
	const times = 1000
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // for cleanups to run
		at := time.Now()
		var e device.Event
		for range times {
			e = m.Device.Compute().Record()
		}
		record := time.Since(at) / times
		at = time.Now()
		for range times {
			if err := stream.WaitFor(e); err != nil {
				return err
			}
		}
		wait := time.Since(at) / times
		at = time.Now()
		for range times {
			e.Done()
		}
		fmt.Println("record", record, "wait", wait, "query", time.Since(at)/times)
		stream.Sync(context.Background())
	}
	return nil
}
