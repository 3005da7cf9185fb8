package host_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

// world makes a group of n ranks in this process and closes it at the end of the test. If change is not
// nil, it changes a rank's configuration first.
func world(t testing.TB, n int, opts func(rank int) *host.Options, change func(rank int, cfg *backend.Config)) []*backendtest.Rank {
	t.Helper()
	control := coordinatortest.Ranks(t, n)
	ranks, errs := make([]*backendtest.Rank, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			cfg := backend.Config{Rank: r, Size: n, Control: control[r], Timeout: 30 * time.Second}
			if change != nil {
				change(r, &cfg)
			}
			g, err := host.New(t.Context(), cfg, opts(r))
			ranks[r], errs[r] = newRank(g, cfg.Control), err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backendtest.CloseAll(ranks, soon) })
	return ranks
}

func newRank(b backend.Backend, control *coordinator.Group) *backendtest.Rank {
	return &backendtest.Rank{Backend: b, Rank: control.Rank(), Size: len(control.Members), Device: cpu.New(&cpu.Options{BLAS: cpu.Gonum}), Control: control}
}

// transports are the ways in which ranks of one process can be joined. Each value returns the ranks'
// options for a new group.
var transports = map[string]func() func(rank int) *host.Options{
	"inproc": func() func(int) *host.Options {
		ranks := host.NewInProcess()
		return func(int) *host.Options { return &host.Options{InProcess: ranks} }
	},
	"shm": func() func(int) *host.Options { return func(int) *host.Options { return nil } },
	"tcp": func() func(int) *host.Options {
		return func(r int) *host.Options { return &host.Options{HostID: fmt.Sprint("host ", r)} }
	},
	"encrypted": func() func(int) *host.Options {
		return func(r int) *host.Options {
			return &host.Options{HostID: fmt.Sprint("host ", r), Member: store.Member{Secret: theSecret}}
		}
	},
	"mixed": func() func(int) *host.Options { // pairs of ranks that share memory, and the last one if their number is odd
		return func(r int) *host.Options { return &host.Options{HostID: fmt.Sprint("host ", r/2)} }
	},
}

// mainTransports are the transports of tests that are not about one. On the first rung they are those that share most
// code with the others.
func mainTransports() []string {
	if testkit.IsLong() {
		return slices.Sorted(maps.Keys(transports))
	}
	return []string{"inproc", "shm", "tcp"}
}

// notUnderRace skips a test that computes much under the race detector, if other tests have the same accesses.
func notUnderRace(t *testing.T) {
	if testkit.Race {
		t.Skip("computes much, and other tests have its accesses")
	}
}

// open makes a group of n ranks over a transport.
func open(t testing.TB, transport string, n int) []*backendtest.Rank {
	t.Helper()
	return world(t, n, transports[transport](), nil)
}

func TestScenarios(t *testing.T) {
	for _, name := range mainTransports() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for deadlines
			backendtest.Suite{SeesPeers: true, Open: func(t testing.TB, n int, change func(rank int, cfg *backend.Config)) []*backendtest.Rank {
				t.Helper()
				return world(t, n, transports[name](), change)
			}}.Run(t)
		})
	}
}

// each runs f for every rank at once and joins the errors.
func each(ranks []*backendtest.Rank, f func(r int, g *backendtest.Rank) error) error {
	return backendtest.Each(ranks, func(m *backendtest.Rank) error { return f(m.Rank, m) })
}

// call runs one call to its end.
func call(g *backendtest.Rank, c *backend.Call) error {
	task, err := g.Start(c)
	if err != nil {
		return err
	}
	return task.Sync(context.Background())
}

// alloc allocates a tensor: in memory of the backend, or of Go.
type alloc func(g *backendtest.Rank, dt device.DType, n int) device.Tensor

func shared(g *backendtest.Rank, dt device.DType, n int) device.Tensor {
	buf, err := g.Alloc(n * dt.Size())
	if err != nil {
		panic(err)
	}
	return device.NewTensor(buf, dt, n)
}

func private(_ *backendtest.Rank, dt device.DType, n int) device.Tensor {
	return device.NewTensor(device.HostBuffer(make([]byte, n*dt.Size()), nil), dt, n)
}

// filled returns a tensor of n elements of rank r, from element off on.
func filled(a alloc, g *backendtest.Rank, dt device.DType, r, off, n int) device.Tensor {
	t := a(g, dt, n)
	for i := range n {
		backendtest.Put(t, i, backendtest.Element(dt, r, off+i))
	}
	return t
}

// expect returns an error unless the elements of t are exactly want.
func expect(what string, t device.Tensor, want func(i int) float64) error {
	for i := range t.Len() {
		if got := backendtest.Get(t, i); got != want(i) {
			return fmt.Errorf("%s: element %d of %d is %v, want %v", what, i, t.Len(), got, want(i))
		}
	}
	return nil
}

// The sizes lie on both sides of every size at which the algorithm changes.
func TestCollectives(t *testing.T) {
	sizes := []int{2, 3}
	if testkit.IsLong() {
		sizes = []int{1, 2, 3, 5}
	} else if testkit.Race {
		sizes = []int{3}
	}
	for name := range transports {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				ranks := open(t, name, n)
				i := 0
				for _, k := range append(backendtest.Kinds, backend.Barrier) {
					for _, c := range []int{0, 1, 2, 3, 1000, 4096, 4097, 20_011} {
						for _, private := range []bool{true, false} {
							i++
							dt := backendtest.Types[i%len(backendtest.Types)]
							ops := backendtest.Ops(dt)
							x := backendtest.Trial{Kind: k, Op: ops[i%len(ops)], DType: dt, Count: c, Root: i % n, InPlace: !private, Private: private}
							if err := backendtest.Each(ranks, x.Run); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			})
		}
	}
}

// Several rounds, levels of the trees and segments, with numbers of ranks that are powers of two and
// not.
func TestAlgorithmsAmongManyRanks(t *testing.T) {
	if !testkit.IsLong() {
		testAlgorithms(t, open(t, "mixed", 7))
		return
	}
	for n := 6; n <= 9; n++ {
		testAlgorithms(t, open(t, []string{"tcp", "mixed"}[n%2], n))
	}
}

func testAlgorithms(t *testing.T, ranks []*backendtest.Rank) {
	n := len(ranks)
	counts := []int{1000, 30_011, 200_003}
	if testkit.Race {
		counts = counts[1:2]
	} else if testkit.IsLong() {
		counts = append(counts, 5003, 70_001, 90_001)
	}
	for i, c := range counts {
		for _, k := range []backend.Kind{backend.AllReduce, backend.Reduce, backend.Broadcast, backend.AllGather, backend.ReduceScatter, backend.AllToAll} {
			x := backendtest.Trial{Kind: k, DType: device.Float32, Count: c, Root: i % n, InPlace: i%2 == 0, Private: i/2%2 == 0}
			if k == backend.AllGather || k == backend.ReduceScatter || k == backend.AllToAll {
				x.Count /= 4
			}
			if err := backendtest.Each(ranks, x.Run); err != nil {
				t.Fatal(err)
			}
		}
	}
	uneven := make([]int, n)
	for r := range uneven {
		uneven[r] = r % 3 * 10_007
	}
	if err := backendtest.Each(ranks, func(m *backendtest.Rank) error { return backendtest.Uneven(m, uneven, true) }); err != nil {
		t.Fatal(err)
	}
}

// maxInline is the largest payload of a header, in bytes.
const maxInline = 16 << 10

// The reductions run inline, on memory that all ranks can access, and staged.
func TestEveryReductionOfEveryType(t *testing.T) {
	notUnderRace(t)
	for _, name := range mainTransports() {
		if name == "inproc" { // as shm
			continue
		}
		t.Run(name, func(t *testing.T) {
			ranks := open(t, name, 3)
			for _, dt := range backendtest.Types {
				for _, op := range backendtest.Ops(dt) {
					for _, c := range []int{257, maxInline/dt.Size() + 100} {
						for _, private := range []bool{true, false} {
							for _, k := range []backend.Kind{backend.AllReduce, backend.Reduce, backend.ReduceScatter} {
								x := backendtest.Trial{Kind: k, Op: op, DType: dt, Count: c, Root: 1, Private: private}
								if err := backendtest.Each(ranks, x.Run); err != nil {
									t.Fatal(err)
								}
							}
						}
					}
				}
			}
			for _, counts := range [][]int{{0, 0, 0}, {1, 0, 3}, {5000, 0, 70_000}, {100_000, 1, 0}} {
				for _, private := range []bool{true, false} {
					if err := backendtest.Each(ranks, func(m *backendtest.Rank) error { return backendtest.Uneven(m, counts, private) }); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// The sum of these numbers depends on the order of addition. All ranks must have the same bits.
func TestResultsAreBitwiseEqual(t *testing.T) {
	notUnderRace(t)
	for _, name := range mainTransports() {
		t.Run(name, func(t *testing.T) {
			const n = 4
			groups := open(t, name, n)
			for seq, c := range []int{100, 5000, 5000, 123_457, 123_457} {
				results := make([][]float32, n)
				sums := make([]float64, c)
				srcs := make([][]float32, n)
				for r := range n {
					rng := rand.New(rand.NewPCG(uint64(r), 1))
					srcs[r] = make([]float32, c)
					for i := range srcs[r] {
						srcs[r][i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(20))))
						sums[i] += float64(srcs[r][i])
					}
				}
				err := each(groups, func(r int, g *backendtest.Rank) error {
					x := []alloc{private, shared}[seq%2](g, device.Float32, c)
					into := device.Elements[float32](x)
					copy(into, srcs[r])
					results[r] = into
					return call(g, &backend.Call{Seq: uint64(seq), Kind: backend.AllReduce, Dst: x, Src: x})
				})
				if err != nil {
					t.Fatal(err)
				}
				for r := range n {
					for i, v := range results[r] {
						if math.Float32bits(v) != math.Float32bits(results[0][i]) {
							t.Fatalf("count %d: element %d is %v on rank %d, %v on rank 0", c, i, v, r, results[0][i])
						}
						if diff := math.Abs(float64(v) - sums[i]); diff > 1e-6*math.Exp2(22) {
							t.Fatalf("count %d: element %d is %v, want %v", c, i, v, sums[i])
						}
					}
				}
			}
		})
	}
}

// Min and Max are NaN if an element of any rank is NaN.
func TestMinAndMaxPropagateNaN(t *testing.T) {
	groups := open(t, "inproc", 3)
	for seq, op := range []backend.ReduceOp{backend.Min, backend.Max, backend.Sum} {
		for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
			err := each(groups, func(r int, g *backendtest.Rank) error {
				x := private(g, dt, 3)
				for i := range 3 {
					backendtest.Put(x, i, float64(i))
				}
				backendtest.Put(x, r, math.NaN())
				if err := call(g, &backend.Call{Seq: uint64(seq), Kind: backend.AllReduce, Op: op, Dst: x, Src: x}); err != nil {
					return err
				}
				for i := range 3 {
					if v := backendtest.Get(x, i); !math.IsNaN(v) {
						return fmt.Errorf("%v of %v: element %d is %v", op, dt, i, v)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// All ranks start the same random sequence of collectives and messages without waiting, and check
// the results at the end.
func TestManyCallsInFlight(t *testing.T) {
	for _, name := range mainTransports() {
		t.Run(name, func(t *testing.T) {
			const n, calls = 3, 50
			groups := open(t, name, n)
			err := each(groups, func(r int, g *backendtest.Rank) error {
				rng := rand.New(rand.NewPCG(7, 11)) // the same sequence on all ranks
				var checks []func() error
				for seq := range uint64(calls) {
					c := int(math.Exp(rng.Float64() * 11))
					a := []alloc{private, shared}[rng.IntN(2)]
					b := &backend.Call{Seq: seq, Kind: backend.AllReduce}
					want := func(i int) float64 { return backendtest.Reduced(device.Float32, backend.Sum, n, int(seq)+i) }
					switch rng.IntN(4) {
					case 0: // all ranks send first, and then receive
						next, prev := (r+1)%n, (r+n-1)%n
						task, err := g.Start(&backend.Call{Seq: seq, Kind: backend.Send, Root: next, Src: filled(a, g, device.Float32, r, int(seq), c)})
						if err != nil {
							return err
						}
						checks = append(checks, func() error { return task.Sync(context.Background()) })
						b = &backend.Call{Seq: seq, Kind: backend.Recv, Root: prev, Dst: a(g, device.Float32, c)}
						want = func(i int) float64 { return backendtest.Element(device.Float32, prev, int(seq)+i) }
					case 1:
						b.Kind, b.Root = backend.Broadcast, rng.IntN(n)
						b.Dst = a(g, device.Float32, c)
						if r == b.Root {
							b.Src = filled(a, g, device.Float32, r, int(seq), c)
						}
						want = func(i int) float64 { return backendtest.Element(device.Float32, b.Root, int(seq)+i) }
					default:
						b.Src = filled(a, g, device.Float32, r, int(seq), c)
						b.Dst = b.Src
					}
					task, err := g.Start(b)
					if err != nil {
						return err
					}
					checks = append(checks, func() error {
						if err := task.Sync(context.Background()); err != nil {
							return err
						}
						return expect(fmt.Sprintf("rank %d: %v", r, b), b.Dst, want)
					})
				}
				for _, check := range checks {
					if err := check(); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
