package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// slowDisk blocks the files of one rank until the test opens it.
type slowDisk struct {
	disk
	open chan struct{}
	err  error // the error that a write returns afterwards
}

func (d slowDisk) Create(path string) (file, error) {
	<-d.open
	if d.err != nil {
		return nil, d.err
	}
	return d.disk.Create(path)
}

// sharedFolder returns a folder that all ranks use, whether they are goroutines or processes.
func sharedFolder(t *testing.T, pg *comm.ProcessGroup) (string, error) {
	dir := t.TempDir()
	return dir, comm.BroadcastObject(t.Context(), pg, &dir, 0)
}

func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2) }

// An asynchronous checkpoint holds the state at the call of Save, although later steps overwrite
// the state while the files are written. A run that resumes from it continues with the same bits.
func TestAsyncSavesTheStateOfItsCall(t *testing.T) {
	for _, kind := range []string{plain, zeros} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error { return saveBesideSteps(t, pg, kind) })
	}
}

// On a device whose copies run beside the compute stream, a forward pass does not wait for the
// snapshot, and an update does.
func TestUpdatesWaitForTheSnapshot(t *testing.T) {
	var late []device.Device
	for range 2 {
		d := cpu.New(&cpu.Options{Threads: 1})
		defer d.Close()
		late = append(late, devicetest.Defer(d))
	}
	for _, kind := range []string{plain, zeros} {
		commtest.OnDevices(t, late, nil, func(pg *comm.ProcessGroup) error { return saveBesideSteps(t, pg, kind) })
	}
}

func saveBesideSteps(t *testing.T, pg *comm.ProcessGroup, kind string) error {
	dir, err := sharedFolder(t, pg)
	if err != nil {
		return err
	}
	r, err := newRun(pg, kind, 1)
	if err != nil {
		return err
	}
	slow := slowDisk{open: make(chan struct{})}
	m, err := Open(t.Context(), pg, dir, &Options{Async: true})
	if err != nil {
		return err
	}
	if _, err := r.train(0, 3); err != nil {
		return err
	}
	m.fs = slow
	if err := m.Save(t.Context(), 3, r.state()); err != nil {
		return err
	}
	late, deferred := pg.Device().(*devicetest.Deferred)
	if deferred {
		autograd.NoGrad(late, func() { r.net.Forward(autograd.Zeros(late, device.Float32, 1, 7)) })
		if done, err := m.writing.copied.Done(); done || err != nil {
			t.Errorf("%s: a forward pass waited for the snapshot: %v", kind, err)
		}
	}
	want, err := r.train(3, 6)
	if deferred {
		if n, err := late.Run(); n > 0 || err != nil {
			t.Errorf("%s: the updates did not wait for %d copies of the snapshot: %v", kind, n, err)
		}
	}
	close(slow.open)
	if err := errors.Join(err, m.Close()); err != nil {
		return err
	}
	again, err := resumed(t.Context(), pg, dir, kind, 3)
	if err != nil {
		return err
	}
	got, err := again.train(3, 6)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the losses are %v, want %v", kind, got, want)
	}
	return err
}

// If a writer fails, the next Save returns its error on all ranks, or Wait or Close does if there is no
// other Save. The save after that succeeds.
func TestAsyncErrors(t *testing.T) {
	commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
		ctx := t.Context()
		dir, err := sharedFolder(t, pg)
		if err != nil {
			return err
		}
		r, m, err := begin(pg, dir, plain, 1, Options{Async: true})
		if err != nil {
			return err
		}
		opened := make(chan struct{})
		close(opened)
		broken := func(*State) { m.fs = slowDisk{open: opened, err: errFault} }
		rankValue := func(v any) func(s *State) {
			return func(s *State) { s.RankValues = map[string]any{"v": v} }
		}
		for i, c := range []struct {
			onRank1 func(s *State)
			result  func() error // how the caller learns of the failure
			want    []string
		}{
			{broken, func() error { return m.Save(ctx, 99, r.state()) }, []string{"saving step 1 in " + dir + ": rank 1: injected fault"}},
			{nil, func() error { return m.Wait(ctx) }, nil},
			{broken, func() error { return m.Wait(ctx) }, []string{"saving step 3 in " + dir + ": rank 1: injected fault"}},
			{rankValue(strings.Repeat("x", 9<<20)), func() error { return m.Wait(ctx) }, []string{"rank 1: posting ", "at most 8388608"}},
			{rankValue(func() {}), m.Close, []string{`rank 1: value "v": json: unsupported type`}}, // the snapshot fails
			{nil, m.Close, nil},
		} {
			m.fs = disk{}
			s := r.state()
			s.RankValues = map[string]any{"v": pg.Rank()}
			if c.onRank1 != nil && pg.Rank() == 1 {
				c.onRank1(&s)
			}
			if err := m.Save(ctx, i+1, s); err != nil && (i < 5 || !errors.Is(err, ErrClosed)) {
				return err
			}
			err := c.result()
			if c.want == nil && err != nil {
				t.Errorf("rank %d, save %d: %v", pg.Rank(), i+1, err)
			}
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d, save %d: %v, want %q", pg.Rank(), i+1, err, want)
				}
			}
		}
		if err := m.Save(ctx, 9, r.state()); !errors.Is(err, ErrClosed) {
			t.Errorf("Save after Close: %v", err)
		}
		step, err := resumedAt(ctx, pg, dir, r.state())
		if step != 2 {
			t.Errorf("resumed at step %d, want the only one that is complete", step)
		}
		return err
	})
}

// resumedAt resumes a state and returns the step.
func resumedAt(ctx context.Context, pg *comm.ProcessGroup, dir string, s State) (int, error) {
	m, err := Open(ctx, pg, dir, nil)
	if err != nil {
		return 0, err
	}
	step, err := m.Resume(ctx, s)
	return step, errors.Join(err, m.Close())
}

// With SkipBusy, a Save while a rank still writes the one before does nothing, on all ranks.
// Without it, the Save waits.
func TestSecondSaveWaitsOrIsSkipped(t *testing.T) {
	for _, skip := range []bool{true, false} {
		commtest.OnRanks(t, 2, nil, func(pg *comm.ProcessGroup) error {
			dir, err := sharedFolder(t, pg)
			if err != nil {
				return err
			}
			r, m, err := begin(pg, dir, plain, 1, Options{Async: true, SkipBusy: skip})
			if err != nil {
				return err
			}
			slow := slowDisk{open: make(chan struct{})}
			if pg.Rank() == 1 {
				m.fs = slow
			}
			if err := m.Save(t.Context(), 1, r.state()); err != nil {
				return err
			}
			if !skip {
				close(slow.open) // otherwise the second Save would wait forever
			}
			if err := m.Save(t.Context(), 2, r.state()); err != nil {
				return err
			}
			if skip {
				if err := pg.Barrier().Wait(t.Context()); err != nil {
					return err
				}
				close(slow.open)
			}
			if err := m.Close(); err != nil {
				return err
			}
			want := 2
			if skip {
				want = 1
			}
			step, err := resumedAt(t.Context(), pg, dir, r.state())
			if step != want {
				t.Errorf("SkipBusy %v: resumed at %d, want %d", skip, step, want)
			}
			return err
		})
	}
}

// A rank that dies during a save delays the other ranks for a bounded time: until the timeout, or
// for a few seconds if their group is broken.
func TestCloseReturnsDespiteADeadRank(t *testing.T) {
	for _, breaksAfter := range []time.Duration{0, 20 * time.Second, time.Hour} { // the start of Close
		known := breaksAfter < time.Minute
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			groups, err := comm.Local(2, nil)
			if err != nil {
				t.Fatal(err)
			}
			var wg, opened sync.WaitGroup
			opened.Add(len(groups)) // because an abort of the group would end an Open in progress
			for _, pg := range groups {
				wg.Go(func() {
					r, err := newRun(pg, plain, 1)
					if err != nil {
						t.Error(err)
						opened.Done()
						return
					}
					m, err := Open(t.Context(), pg, dir, &Options{Async: true, Timeout: time.Minute})
					opened.Done()
					if err != nil {
						t.Error(err)
						return
					}
					if pg.Rank() == 1 {
						return // rank 1 dies
					}
					opened.Wait()
					if err := m.Save(t.Context(), 1, r.state()); err != nil {
						t.Error(err)
					}
					start, most := time.Now(), time.Minute
					if known {
						defer time.AfterFunc(breaksAfter, func() { pg.Abort(errors.New("rank 1 died")) }).Stop()
						most = breaksAfter + brokenGroupTimeout
					}
					err = m.Close()
					if err == nil || !strings.Contains(err.Error(), "rank 1 did not say that its share is durable") || strings.Contains(err.Error(), "did not call Save") == known || time.Since(start) > most+time.Second {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
				})
			}
			wg.Wait()
			for _, pg := range groups {
				pg.Close()
			}
		})
	}
}

// A writer whose deadline has passed leaves copies of the snapshot to the device. Close does not
// free the memory that they write.
func TestCloseKeepsMemoryThatIsCopiedTo(t *testing.T) {
	d := cpu.New(&cpu.Options{Threads: 1})
	defer d.Close()
	late := devicetest.Defer(d)
	commtest.OnDevices(t, []device.Device{late}, nil, func(pg *comm.ProcessGroup) error {
		r, m, err := begin(pg, t.TempDir(), plain, 1, Options{Async: true, Timeout: time.Millisecond})
		if err != nil {
			return err
		}
		if err := m.Save(t.Context(), 1, r.state()); err != nil {
			return err
		}
		size := m.pinned.Len()
		if err := m.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v from Close, want %v", err, context.DeadlineExceeded)
		}
		other, err := late.AllocHost(size)
		if err != nil {
			return err
		}
		clear(other.Host())
		n, err := late.Run()
		if n == 0 || slices.Max(other.Host()) > 0 {
			t.Errorf("%d copies were late, and wrote %v", n, other.Host())
		}
		return err
	})
}

// hook is a communication hook whose state differs between ranks.
type hook struct{ state map[string]device.Tensor }

func (h *hook) State(context.Context) (map[string]device.Tensor, error) { return h.state, nil }

func (h *hook) LoadState(s map[string]device.Tensor) error {
	h.state = s
	return nil
}

// At the number of ranks that saved, each rank gets back its own values and its hook's state. At another number it keeps
// what it has. A value that is also in Values then becomes rank 0's; so it does if the checkpoint has none of the ranks' own.
// All ranks get the loss scale. What is not loaded is logged.
func TestRankValuesAreRestored(t *testing.T) {
	dir := t.TempDir()
	tensor := func(x float32) device.Tensor { return device.HostTensor([]float32{x, 2 * x}, device.Float32) }
	for _, ranks := range []int{2, 2, 3} {
		var log bytes.Buffer
		first, same := true, ranks == 2
		if all, err := List(dir); err == nil && len(all) > 0 {
			first = false
		}
		commtest.OnGoroutines(t, ranks, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
			net := nn.Linear(2, 2, nil)
			if err := nn.Place(net, pg.Device(), 1); err != nil {
				return err
			}
			scaler := must.New(amp.NewScaler(nil))
			value, h := 100+pg.Rank(), &hook{map[string]device.Tensor{"unsent": tensor(float32(100 + pg.Rank()))}}
			drawn, late := 200+pg.Rank(), 300+pg.Rank()
			s := State{
				Model: net, Hook: h, Values: map[string]any{"scaler": scaler, "drawn": &drawn, "late": &late},
				RankValues: map[string]any{"value": &value, "drawn": &drawn, "late": &late},
			}
			m, err := Open(t.Context(), pg, dir, nil)
			if err != nil {
				return err
			}
			if first {
				s.Values["note"] = "x"
				delete(s.RankValues, "late")
				value, h.state = pg.Rank(), map[string]device.Tensor{"unsent": tensor(float32(pg.Rank()))}
				err := json.Unmarshal([]byte(`{"Scale": 512, "GrowthTracker": 3}`), scaler)
				return errors.Join(err, m.Save(t.Context(), 1, s), m.Close())
			}
			if _, err := m.Resume(t.Context(), s); err != nil {
				return err
			}
			want := pg.Rank()
			if !same {
				want += 100
			}
			if value != want || !bytes.Equal(h.state["unsent"].Buf.Host(), tensor(float32(want)).Buf.Host()) {
				t.Errorf("rank %d of %d has %d and %v, want %d", pg.Rank(), ranks, value, h.state, want)
			}
			wantDrawn := 200
			if same {
				wantDrawn += pg.Rank()
			}
			if drawn != wantDrawn || late != 300 {
				t.Errorf("rank %d of %d has the values %d and %d of both maps, want %d and 300", pg.Rank(), ranks, drawn, late, wantDrawn)
			}
			if got, err := json.Marshal(scaler); string(got) != `{"Scale":512,"GrowthTracker":3}` {
				t.Errorf("the scaler is %s, %v", got, err)
			}
			return m.Close()
		})
		want := "ignored=[note]"
		if !same {
			want = `ignored="[note value the state of the hook]"`
		}
		if strings.Contains(log.String(), want) == first || strings.Count(log.String(), "msg=\"the checkpoint") > 1 {
			t.Errorf("%d ranks: the log has no %s, or more warnings:\n%s", ranks, want, &log)
		}
	}
}

// Floats that are NaN or infinite come back, in Values and in RankValues, and the manifest is JSON that other programs read.
func TestValuesThatAreNotFinite(t *testing.T) {
	type history struct {
		Best   float64
		Losses []float32 `json:"losses"`
	}
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		m, err := Open(t.Context(), pg, dir, nil)
		if err != nil {
			return err
		}
		best, norm, h := math.Inf(1), math.NaN(), history{math.Inf(-1), []float32{1.5, float32(math.NaN())}}
		err = m.Save(t.Context(), 1, State{Values: map[string]any{"best": &best, "history": &h}, RankValues: map[string]any{"norm": &norm}})
		best, norm, h = 0, 0, history{}
		if err == nil {
			_, err = m.Resume(t.Context(), State{Values: map[string]any{"best": &best, "history": &h}, RankValues: map[string]any{"norm": &norm}})
		}
		if err := errors.Join(err, m.Close()); err != nil {
			return err
		}
		if got := fmt.Sprint(best, norm, h); got != "+Inf NaN {-Inf [1.5 NaN]}" {
			t.Errorf("the values are %s", got)
		}
		return nil
	})
	all, err := List(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v, want one checkpoint", all, err)
	}
	text, err := os.ReadFile(filepath.Join(all[0].Path, manifestName))
	if want := `"history":{"Best":"-Inf","losses":[1.5,"NaN"]}`; err != nil || !json.Valid(text) || !bytes.Contains(text, []byte(want)) {
		t.Errorf("the manifest is %s, %v, want %s in it", text, err, want)
	}
}

// A model of another floating-point type than the checkpoint gets converted numbers.
func TestTypesAreConverted(t *testing.T) {
	dir := t.TempDir()
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		models := map[device.DType]map[string]*autograd.Variable{}
		for _, dt := range []device.DType{device.Float32, device.BFloat16} {
			net := nn.Linear(5, 3, &nn.LinearOptions{DType: dt, Compute: device.Float32})
			if err := nn.Place(net, pg.Device(), uint64(dt)); err != nil {
				return err
			}
			m, err := Open(t.Context(), pg, dir, nil)
			if err != nil {
				return err
			}
			if dt == device.Float32 {
				err = m.Save(t.Context(), 1, State{Model: net})
			} else {
				_, err = m.Resume(t.Context(), State{Model: net})
			}
			if err := errors.Join(err, m.Close()); err != nil {
				return err
			}
			models[dt] = maps.Clone(nn.State(net))
		}
		for name, wide := range models[device.Float32] {
			want := autograd.Cast(wide, device.BFloat16).Tensor().Buf.Host()
			if got := models[device.BFloat16][name].Tensor().Buf.Host(); !bytes.Equal(got, want) {
				t.Errorf("%s is % x, want % x", name, got, want)
			}
		}
		return nil
	})
}
