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

	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// mapping lets the fake GPUs map each other's memory.
const mapping = "ipc 0\nipc 1\nipc 2\nipc 3"

// Small all-reduces and barriers of two to four ranks work although NCCL refuses every call. If one GPU
// reaches the others over PCIe, or one process does not see the GPU of another, no rank uses wide lines.
func TestEmulatedSmallAllReduce(t *testing.T) {
	for links, n := range map[string]int{"": 3, "pcie 1": 2, "hidden 1 0": 4} {
		t.Run(fmt.Sprint(n, " ", links), func(t *testing.T) {
			lines := []string{mapping, links}
			for r := range n {
				lines = append(lines, fmt.Sprintf("refuse %d 1", r))
			}
			control(t, lines...)
			members := world(t, n)
			if err := errors.Join(backendtest.Each(members, manySmallAllReduces), backendtest.CloseAll(members, soon)); err != nil {
				t.Error(err)
			}
			for _, m := range members {
				if why := nccl.Narrow(m.Backend); (why == nil) != (links == "") {
					t.Errorf("rank %d: no wide lines because of %v", m.Rank, why)
				}
			}
		})
	}
}

// manySmallAllReduces runs small all-reduces of all types, the largest included, and a barrier.
func manySmallAllReduces(m *backendtest.Rank) error {
	for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
		most := nccl.MaxSmallBytes(m.Backend) / dt.Size()
		for _, x := range []backendtest.Trial{
			{Kind: backend.AllReduce, Op: backend.Sum, DType: dt, Count: 1}, {Kind: backend.AllReduce, Op: backend.Avg, DType: dt, Count: most - 1},
			{Kind: backend.AllReduce, Op: backend.Avg, DType: dt, Count: 2, InPlace: true}, {Kind: backend.AllReduce, Op: backend.Sum, DType: dt, Count: most, InPlace: true},
		} {
			if err := x.Run(m); err != nil {
				return fmt.Errorf("%v: %w", x, err)
			}
		}
	}
	return m.Run(&backend.Call{Kind: backend.Barrier})
}

// Up to eight ranks share one fake GPU.
func TestEmulatedSmallAllReduceOnOneGPU(t *testing.T) {
	control(t)
	dev, err := fakegpu.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := ranksOnOneGPU(dev, 2, 3, 8); err != nil {
		t.Error(err)
	}
}

// ranksOnOneGPU runs groups of ranks on one GPU.
func ranksOnOneGPU(dev device.Device, sizes ...int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, ranks := range sizes {
		if err := nccl.SmallAllReduceOnOneGPU(ctx, dev, ranks); err != nil {
			return err
		}
	}
	return nil
}

// Small all-reduces and calls of NCCL alternate on one stream.
func TestEmulatedSmallAllReduceAlternatesWithNCCL(t *testing.T) {
	control(t, mapping)
	members := world(t, 3)
	if err := errors.Join(nccl.SmallAllReduceDisabled(members[0].Backend), backendtest.Each(members, backendtest.Collectives)); err != nil {
		t.Error(err)
	}
}

// One rank cannot run small all-reduces, or turns them off. Then NCCL runs them on all ranks, which
// the test sees because NCCL refuses its first call.
func TestEmulatedNCCLServesAllIfOneRankCannot(t *testing.T) {
	testkit.Emulated(t)
	for name, c := range map[string]struct {
		mapping string
		change  func(cfg *backend.Config, o *nccl.Options) // of rank 1
		why     string
	}{
		"one cannot map":     {mapping: "ipc 0", why: "cuIpcOpenMemHandle"},
		"one turned off":     {mapping, func(_ *backend.Config, o *nccl.Options) { o.NoSmallAllReduce = true }, "turned off"},
		"one cannot compile": {mapping, func(cfg *backend.Config, _ *nccl.Options) { cfg.Device = noCompiler{cfg.Device.(gpu)} }, "cannot compile kernels"},
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
				errs, _ = backendtest.Outcomes(members, oneReduction)
				backendtest.CloseAll(members, soon)
				return errs
			})
			if n := strings.Count(said.String(), "small all-reduces use NCCL"); n != 2 || strings.Count(said.String(), c.why) < 2 {
				t.Errorf("%d ranks say that small all-reduces use NCCL, want 2 that say %q:\n%s", n, c.why, &said)
			}
		})
	}
}

// gpu is the part of a device that a group needs. noCompiler hides the rest.
type gpu interface {
	device.Device
	Context() uintptr
	Lookup(symbol string) (unsafe.Pointer, error)
}

type noCompiler struct{ gpu }

// NCCL's variables turn small all-reduces off.
func TestEmulatedNCCLVariablesTurnSmallAllReduceOff(t *testing.T) {
	for name, value := range map[string]string{"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"} {
		t.Run(name, func(t *testing.T) {
			control(t, mapping)
			t.Setenv(name, value)
			for _, m := range world(t, 2) {
				if why := nccl.SmallAllReduceDisabled(m.Backend); why == nil || !strings.Contains(why.Error(), name) {
					t.Errorf("rank %d: %v, want that %s turns it off", m.Rank, why, name)
				}
			}
		})
	}
}

// NCCL, which refuses its first call, runs all calls that are not small all-reduces.
func TestEmulatedOtherCallsUseNCCL(t *testing.T) {
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
			wantRefused(t, mapping, func(t *testing.T) []error {
				errs, _ := backendtest.Outcomes(world(t, 2), func(m *backendtest.Rank) error {
					count := 1000
					if name == "too many of it" {
						count = nccl.MaxSmallBytes(m.Backend)/device.Float32.Size() + 1
					}
					c, err := m.Ones(count)
					if err != nil {
						return err
					}
					return m.Run(change(c))
				})
				return errs
			})
		})
	}
}

// The ranks' Groups contain, next to an AllReduce, different Sends and Recvs or none. NCCL runs all
// of them.
func TestEmulatedGroupsOfDifferentCallsUseNCCL(t *testing.T) {
	control(t, mapping)
	if err := backendtest.Each(world(t, 3), func(m *backendtest.Rank) error {
		c, err := m.Ones(1000)
		if err != nil {
			return err
		}
		x, err := m.Upload(backendtest.HostTensor(device.Int32, 10))
		if err != nil {
			return err
		}
		g := &backend.Call{Kind: backend.Group, Calls: []*backend.Call{c}, Timeout: soon}
		switch m.Rank {
		case 0:
			g.Calls = append(g.Calls, &backend.Call{Kind: backend.Send, Src: x, Root: 1})
		case 1:
			g.Calls = append(g.Calls, &backend.Call{Kind: backend.Recv, Dst: x, Root: 0})
		}
		return m.Run(g)
	}); err != nil {
		t.Error(err)
	}
}

// oneReduction runs one small all-reduce.
func oneReduction(m *backendtest.Rank) error {
	c, err := m.Ones(1000)
	if err != nil {
		return err
	}
	return m.Run(c)
}

// wantRefused lets NCCL refuse its first call, on one rank after the other. It fails the test
// unless that rank's error in what calls returns is NCCL's.
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

// One call number is left. NCCL runs the call after that one.
func TestEmulatedNCCLServesAfterTheLastCallNumber(t *testing.T) {
	wantRefused(t, mapping, func(t *testing.T) []error {
		members := world(t, 2)
		for _, m := range members {
			nccl.UseUpCallNumbers(m.Backend)
		}
		if err := backendtest.Each(members, oneReduction); err != nil {
			t.Error(err)
		}
		errs, _ := backendtest.Outcomes(members, oneReduction)
		return errs
	})
}

// Groups are made and closed without a failure. The slots must be freed, after the peers have unmapped
// them.
func TestEmulatedSmallAllReduceMemoryIsFreed(t *testing.T) {
	control(t, mapping, "refuse 0 1", "refuse 1 1", "memory 60000000")
	for i := range 10 { // each group needs 13 MiB
		members := world(t, 2)
		if err := errors.Join(backendtest.Each(members, oneReduction), backendtest.CloseAll(members, soon)); err != nil {
			t.Fatal("group ", i, ": ", err)
		}
	}
}

// Groups break. The slots must be freed when no rank has the group any more.
func TestEmulatedSmallAllReduceMemoryOfBrokenGroupsIsFreed(t *testing.T) {
	control(t, mapping, "refuse 0 1", "refuse 1 1", "memory 60000000")
	for i := range 10 {
		members := world(t, 2)
		if err := backendtest.Each(members, oneReduction); err != nil {
			t.Fatal("group ", i, ": ", err)
		}
		members[0].Backend.Abort(errors.New("a cause of the test"))
		backendtest.CloseAll(members, soon)
		for _, m := range members {
			nccl.AwaitAborts(m.Backend)
			m.Backend.(backend.Sharer).Unmap()
		}
		for _, m := range members {
			m.Backend.(backend.Sharer).Free()
		}
	}
}

// smallAllReduces starts many calls of different sizes and alignments at once. The results must be
// bitwise equal to the sum in the order of the ranks, and memory next to them must not change. It
// does nothing on GPUs that cannot, or must not, map each other's memory.
func smallAllReduces(m *backendtest.Rank) error {
	if why := nccl.SmallAllReduceDisabled(m.Backend); why != nil {
		if said := why.Error(); strings.Contains(said, "cuIpcOpenMemHandle") || strings.Contains(said, "turned off") {
			fmt.Println("left out:", why)
			return nil
		}
		return why
	}
	const rounds, calls = 20, 40
	sizes := rand.New(rand.NewPCG(1, 2)) // the same sequence on all ranks
	type started struct {
		task     backend.Task
		whole    device.Tensor
		from, to int // elements that are reduced
		op       backend.ReduceOp
	}
	for round := range rounds {
		var all []started
		for call := range calls {
			s := started{from: sizes.IntN(3), op: []backend.ReduceOp{backend.Sum, backend.Avg}[call%2]}
			n := 1 + sizes.IntN(64)
			if call%4 == 0 {
				n = 1 + sizes.IntN(nccl.MaxSmallBytes(m.Backend)/4)
			}
			s.to = s.from + n
			h := backendtest.HostTensor([]device.DType{device.Float32, device.BFloat16}[call%3/2], s.to+sizes.IntN(3))
			for i := range h.Len() {
				backendtest.Put(h, i, noise(m.Rank, round, call, i))
			}
			var err error
			if s.whole, err = m.Upload(h); err != nil {
				return err
			}
			x := s.whole.Range(s.from, s.to)
			if s.task, err = m.Enqueue(&backend.Call{Kind: backend.AllReduce, Op: s.op, Src: x, Dst: x}); err != nil {
				return err
			}
			all = append(all, s)
		}
		for call, s := range all {
			if err := s.task.Join(context.Background(), m.Device.Compute()); err != nil {
				return err
			}
			got, err := m.Download(s.whole)
			if err != nil {
				return err
			}
			want := backendtest.HostTensor(got.DType, 1)
			for i := range got.Len() {
				backendtest.Put(want, 0, noise(m.Rank, round, call, i))
				if i >= s.from && i < s.to {
					var sum float32
					for r := range m.Size {
						backendtest.Put(want, 0, noise(r, round, call, i))
						sum += float32(backendtest.Get(want, 0))
					}
					if s.op == backend.Avg {
						sum *= float32(1 / float64(m.Size))
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

// noise returns a number from -1 to 1, which all ranks can compute.
func noise(rank, round, call, i int) float64 {
	h := uint64(rank+1)*0x9E3779B97F4A7C15 ^ uint64(round*64+call)*0xBF58476D1CE4E5B9 ^ uint64(i+1)*0x94D049BB133111EB
	h ^= h >> 31
	h *= 0xBF58476D1CE4E5B9
	return float64(int32(h>>32)) / (1 << 31)
}
