//go:build cgo && linux

package nccl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
	"github.com/goddp/goddp/internal/backend/nccl"
	"github.com/goddp/goddp/internal/fakegpu"
)

// mapping lets the stand-in GPUs map each other's memory.
const mapping = "ipc 0\nipc 1\nipc 2\nipc 3"

// TestOneShot runs what need not be NCCL's, which refuses everything, on two to
// four ranks.
func TestOneShot(t *testing.T) {
	for n := 2; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lines := []string{mapping}
			for r := range n {
				lines = append(lines, fmt.Sprintf("refuse %d 1", r))
			}
			control(t, lines...)
			members := world(t, n)
			if err := each(members, func(m *member) error {
				for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
					for _, x := range []trial{
						{backend.AllReduce, backend.Sum, dt, 1, 0, false}, {backend.AllReduce, backend.Avg, dt, 22222, 0, false},
						{backend.AllReduce, backend.Avg, dt, 2, 0, true}, {backend.AllReduce, backend.Sum, dt, nccl.OneShotMost(n) / dt.Size(), 0, true},
					} {
						if err := x.run(m); err != nil {
							return fmt.Errorf("%v: %w", x, err)
						}
					}
				}
				return m.call(&backend.Call{Kind: backend.Barrier})
			}); err != nil {
				t.Error(err)
			}
			if err := closeAll(members, soon); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOneShotAmong has up to eight ranks on one stand-in GPU.
func TestOneShotAmong(t *testing.T) {
	control(t)
	dev, err := fakegpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := among(dev, 8); err != nil {
		t.Error(err)
	}
}

// among has two ranks on one GPU, and more, up to most.
func among(dev device.Device, most int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ranks := 2; ranks <= most; ranks++ {
		if err := nccl.OneShotAmong(ctx, dev, ranks); err != nil {
			return err
		}
	}
	return nil
}

// TestOneShotTurns has it take turns with NCCL, on one stream.
func TestOneShotTurns(t *testing.T) {
	control(t, mapping)
	members := world(t, 3)
	if err := errors.Join(nccl.WithoutOneShot(members[0].Backend), each(members, collectives)); err != nil {
		t.Error(err)
	}
}

// TestNoOneShot has one rank that cannot take part, or is told not to: then NCCL,
// which refuses its first call, has everything on all.
func TestNoOneShot(t *testing.T) {
	for name, c := range map[string]struct {
		mapping string
		change  func(cfg *backend.Config, o *nccl.Options) // rank 1's
		why     string
	}{
		"one cannot map":     {mapping: "ipc 0", why: "cuIpcOpenMemHandle"},
		"one turned off":     {mapping, func(_ *backend.Config, o *nccl.Options) { o.NoSmallAllReduce = true }, "turned off"},
		"one cannot compile": {mapping, func(cfg *backend.Config, _ *nccl.Options) { cfg.Device = noCompiler{cfg.Device.(gpu)} }, "compiles no kernels"},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			wantRefused(t, c.mapping, func(t *testing.T) []error {
				said.Reset()
				log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
				members, errs := attempt(t, 2, func(rank int, cfg *backend.Config, o *nccl.Options) {
					cfg.Log = log
					if rank == 1 && c.change != nil {
						c.change(cfg, o)
					}
				})
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				errs, _ = outcomes(members, oneReduction)
				closeAll(members, soon)
				return errs
			})
			if n := strings.Count(said.String(), "all-reduces of few bytes are NCCL's"); n != 2 || strings.Count(said.String(), c.why) < 2 {
				t.Errorf("%d ranks say that NCCL has everything, want 2 that say %q:\n%s", n, c.why, &said)
			}
		})
	}
}

// gpu is what a group needs of a device, and noCompiler one that has no more.
type gpu interface {
	device.Device
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error)
}

type noCompiler struct{ gpu }

// TestOneShotTurnedOff turns it off by NCCL's variables, on all ranks.
func TestOneShotTurnedOff(t *testing.T) {
	for name, value := range map[string]string{"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"} {
		t.Run(name, func(t *testing.T) {
			control(t, mapping)
			t.Setenv(name, value)
			for _, m := range world(t, 2) {
				if why := nccl.WithoutOneShot(m.Backend); why == nil || !strings.Contains(why.Error(), name) {
					t.Errorf("rank %d: %v, want that %s turns it off", m.rank, why, name)
				}
			}
		})
	}
}

// TestNotOneShot makes calls that it does not take, which NCCL refuses.
func TestNotOneShot(t *testing.T) {
	for name, change := range map[string]func(c *backend.Call) *backend.Call{
		"a maximum": func(c *backend.Call) *backend.Call { c.Op = backend.Max; return c },
		"integers":  func(c *backend.Call) *backend.Call { c.Src.DType = device.Int32; c.Dst = c.Src; return c },
		"a group": func(c *backend.Call) *backend.Call {
			return &backend.Call{Kind: backend.Group, Calls: []*backend.Call{c}}
		},
		"a broadcast":    func(c *backend.Call) *backend.Call { c.Kind = backend.Broadcast; return c },
		"too many of it": func(c *backend.Call) *backend.Call { return c },
	} {
		t.Run(name, func(t *testing.T) {
			count := 1000
			if name == "too many of it" {
				count = nccl.OneShotMost(2)/device.Float32.Size() + 1
			}
			wantRefused(t, mapping, func(t *testing.T) []error {
				errs, _ := outcomes(world(t, 2), func(m *member) error {
					c, err := m.onesOf(count)
					if err != nil {
						return err
					}
					return m.call(change(c))
				})
				return errs
			})
		})
	}
}

// TestUnequalGroups has ranks whose Groups hold, beside an AllReduce, different
// Sends and Recvs, or none: they are all NCCL's.
func TestUnequalGroups(t *testing.T) {
	control(t, mapping)
	if err := each(world(t, 3), func(m *member) error {
		c, err := m.ones()
		if err != nil {
			return err
		}
		x, err := m.upload(hostTensor(device.Int32, 10))
		if err != nil {
			return err
		}
		g := &backend.Call{Kind: backend.Group, Calls: []*backend.Call{c}, Timeout: soon}
		switch m.rank {
		case 0:
			g.Calls = append(g.Calls, &backend.Call{Kind: backend.Send, Src: x, Root: 1})
		case 1:
			g.Calls = append(g.Calls, &backend.Call{Kind: backend.Recv, Dst: x, Root: 0})
		}
		return m.call(g)
	}); err != nil {
		t.Error(err)
	}
}

// oneReduction runs an AllReduce that a one-shot takes.
func oneReduction(m *member) error {
	c, err := m.ones()
	if err != nil {
		return err
	}
	return m.call(c)
}

// wantRefused has NCCL refuse its first call on one rank after the other, and wants that of
// what calls returns: NCCL had the call there.
func wantRefused(t *testing.T, mapping string, calls func(t *testing.T) []error) {
	for r := range 2 {
		t.Run(fmt.Sprint("rank ", r), func(t *testing.T) {
			control(t, mapping, fmt.Sprintf("refuse %d 1", r))
			var refused *nccl.Error
			if errs := calls(t); !errors.As(errs[r], &refused) {
				t.Errorf("rank %d: %v, want NCCL's refusal", r, errs[r])
			}
		})
	}
}

// TestOneShotUsedUp leaves one number: the call after it is NCCL's.
func TestOneShotUsedUp(t *testing.T) {
	wantRefused(t, mapping, func(t *testing.T) []error {
		members := world(t, 2)
		for _, m := range members {
			nccl.UseUp(m.Backend)
		}
		if err := each(members, oneReduction); err != nil {
			t.Error(err)
		}
		errs, _ := outcomes(members, oneReduction)
		return errs
	})
}

// TestHungOneShot has a rank that does not call: the others time out, and their
// kernels end, as Compute tells, which waits for them.
func TestHungOneShot(t *testing.T) {
	control(t, mapping)
	members := world(t, 3)
	if err := each(members, oneReduction); err != nil {
		t.Fatal(err)
	}
	const timeout = 300 * time.Millisecond
	errs, took := outcomes(members, func(m *member) error {
		if m.rank == 1 {
			return nil
		}
		c, err := m.ones()
		if err != nil {
			return err
		}
		c.Timeout = timeout
		task, err := m.start(c)
		if err != nil {
			return err
		}
		return errors.Join(task.Join(context.Background(), m.dev.Compute()), task.Sync(context.Background()))
	})
	if took > timeout+lateness {
		t.Errorf("took %v with a timeout of %v", took, timeout)
	}
	for r, err := range errs {
		if late := new(backend.TimeoutError); r != 1 && (!errors.As(err, &late) || late.State != backend.Running) {
			t.Errorf("rank %d: %v, want a timeout while running", r, err)
		}
	}
	closeAll(members, soon)
	for _, m := range members {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := m.dev.Compute().Sync(ctx); err != nil {
			t.Errorf("rank %d: %v", m.rank, err)
		}
	}
}

// TestOneShotMemory makes groups and ends them in good order: the slots are given
// back, and not before the peers have unmapped them.
func TestOneShotMemory(t *testing.T) {
	control(t, mapping, "refuse 0 1", "refuse 1 1")
	for i := range 130 { // each takes 8 MiB of the GiB that all stand-ins have
		members := world(t, 2)
		if err := errors.Join(each(members, oneReduction), closeAll(members, soon)); err != nil {
			t.Fatal("group ", i, ": ", err)
		}
	}
}

// oneShots starts many calls of all sizes at once, at any alignment, and wants of
// each the bits of the sum in the order of the ranks, and nothing beside it touched.
// GPUs that cannot map each other's memory, or shall not, need not do that.
func oneShots(m *member) error {
	if why := nccl.WithoutOneShot(m.Backend); why != nil {
		if said := why.Error(); strings.Contains(said, "cuIpcOpenMemHandle") || strings.Contains(said, "turned off") {
			fmt.Println("left out:", why)
			return nil
		}
		return why
	}
	const rounds, calls = 20, 40
	sizes := rand.New(rand.NewPCG(1, 2)) // the same on all ranks
	type started struct {
		task     backend.Task
		whole    device.Tensor
		from, to int // what is reduced
		op       backend.ReduceOp
	}
	for round := range rounds {
		var all []started
		for call := range calls {
			s := started{from: sizes.IntN(3), op: []backend.ReduceOp{backend.Sum, backend.Avg}[call%2]}
			n := 1 + sizes.IntN(64)
			if call%4 == 0 {
				n = 1 + sizes.IntN(nccl.OneShotMost(m.size)/4)
			}
			s.to = s.from + n
			h := hostTensor([]device.DType{device.Float32, device.BFloat16}[call%3/2], s.to+sizes.IntN(3))
			for i := range h.Len() {
				backendtest.Put(h, i, noise(m.rank, round, call, i))
			}
			var err error
			if s.whole, err = m.upload(h); err != nil {
				return err
			}
			x := s.whole.Range(s.from, s.to)
			if s.task, err = m.start(&backend.Call{Kind: backend.AllReduce, Op: s.op, Src: x, Dst: x}); err != nil {
				return err
			}
			all = append(all, s)
		}
		for call, s := range all {
			if err := s.task.Join(context.Background(), m.dev.Compute()); err != nil {
				return err
			}
			got, err := m.download(s.whole)
			if err != nil {
				return err
			}
			want := hostTensor(got.DType, 1)
			for i := range got.Len() {
				backendtest.Put(want, 0, noise(m.rank, round, call, i))
				if i >= s.from && i < s.to {
					var sum float32
					for r := range m.size {
						backendtest.Put(want, 0, noise(r, round, call, i))
						sum += float32(backendtest.Get(want, 0))
					}
					if s.op == backend.Avg {
						sum *= float32(1 / float64(m.size))
					}
					backendtest.Put(want, 0, float64(sum))
				}
				if v, w := backendtest.Get(got, i), backendtest.Get(want, 0); v != w {
					return fmt.Errorf("round %d, call %d, %v of %v %d to %d: element %d of %d is %v, want %v",
						round, call, s.op, got.DType, s.from, s.to, i, got.Len(), v, w)
				}
			}
		}
	}
	return nil
}

// noise is a number of a rank's from -1 to 1 that all ranks know.
func noise(rank, round, call, i int) float64 {
	h := uint64(rank+1)*0x9E3779B97F4A7C15 ^ uint64(round*64+call)*0xBF58476D1CE4E5B9 ^ uint64(i+1)*0x94D049BB133111EB
	h ^= h >> 31
	h *= 0xBF58476D1CE4E5B9
	return float64(int32(h>>32)) / (1 << 31)
}
