package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
	"github.com/goddp/goddp/internal/backend/host"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
	"github.com/goddp/goddp/internal/half"
)

// world makes the groups of n ranks in this process.
func world(t testing.TB, n int, opts func(rank int) *host.Options) []*host.Group {
	t.Helper()
	ranks := coordinatortest.Ranks(t, n)
	groups, errs := make([]*host.Group, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			cfg := backend.Config{Rank: r, Size: n, Control: ranks[r], Timeout: 30 * time.Second}
			groups[r], errs[r] = host.New(t.Context(), cfg, opts(r))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, g := range groups {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				g.Close(ctx)
			})
		}
		wg.Wait()
	})
	return groups
}

// transports are the ways in which ranks of one process can be joined.
var transports = map[string]func(t testing.TB, n int) []*host.Group{
	"inproc": func(t testing.TB, n int) []*host.Group {
		ranks := host.NewInProcess()
		return world(t, n, func(int) *host.Options { return &host.Options{InProcess: ranks} })
	},
	"shm": func(t testing.TB, n int) []*host.Group {
		return world(t, n, func(int) *host.Options { return nil })
	},
	"tcp": func(t testing.TB, n int) []*host.Group {
		return world(t, n, func(r int) *host.Options { return &host.Options{HostID: fmt.Sprint("host ", r)} })
	},
	"mixed": func(t testing.TB, n int) []*host.Group {
		return world(t, n, func(r int) *host.Options { return &host.Options{HostID: fmt.Sprint("host ", r/2)} })
	},
}

// each runs f for every rank at once and joins the errors.
func each(groups []*host.Group, f func(r int, g *host.Group) error) error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() { errs[r] = f(r, g) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// call runs one call to its end.
func call(g *host.Group, c *backend.Call) error {
	task, err := g.Start(c)
	if err != nil {
		return err
	}
	return task.Sync(context.Background())
}

// element returns element i of rank r. The values are small, so that any sum and product of five is
// exact in every type.
func element(r, i int) float64 { return float64(1 + (r*7+i*3+i/5)%3) }

// alloc allocates a tensor: in memory of the backend, or of Go.
type alloc func(g *host.Group, dt device.DType, n int) device.Tensor

func shared(g *host.Group, dt device.DType, n int) device.Tensor {
	buf, err := g.Alloc(n * dt.Size())
	if err != nil {
		panic(err)
	}
	return device.NewTensor(buf, dt, n)
}

func private(_ *host.Group, dt device.DType, n int) device.Tensor {
	return device.NewTensor(device.HostBuffer(make([]byte, n*dt.Size()), nil), dt, n)
}

// filled returns a tensor of n elements of rank r, from element off on.
func filled(a alloc, g *host.Group, dt device.DType, r, off, n int) device.Tensor {
	t := a(g, dt, n)
	for i := range n {
		backendtest.Put(t, i, element(r, off+i))
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

// factor returns the factor of rank r in a PreMulSum.
func factor(r int) float64 { return []float64{0.5, -2, 0, 4}[r%4] }

// combined returns the reduction of v(0) ... v(n-1), rounded as in type dt.
func combined(dt device.DType, op backend.ReduceOp, n int, v func(r int) float64) float64 {
	if op == backend.PreMulSum {
		return combined(dt, backend.Sum, n, func(r int) float64 { return factor(r) * v(r) })
	}
	acc := v(0)
	for r := 1; r < n; r++ {
		switch op {
		case backend.Sum, backend.Avg:
			acc += v(r)
		case backend.Min:
			acc = min(acc, v(r))
		case backend.Max:
			acc = max(acc, v(r))
		case backend.Product:
			acc *= v(r)
		}
	}
	if op == backend.Avg {
		switch dt {
		case device.Float64:
			return acc * (1 / float64(n))
		case device.Float32:
			return float64(float32(acc) * (1 / float32(n)))
		case device.Float16:
			return float64(half.FromF16(half.F16(float32(acc) * (1 / float32(n)))))
		case device.BFloat16:
			return float64(half.FromBF16(half.BF16(float32(acc) * (1 / float32(n)))))
		}
		return math.Trunc(acc / float64(n))
	}
	return acc
}

// exercise runs one call on all ranks and checks the results. c is the count in the comment of the
// Kind.
func exercise(groups []*host.Group, a alloc, seq uint64, k backend.Kind, op backend.ReduceOp, dt device.DType, c, root int, inPlace bool) error {
	n := len(groups)
	return each(groups, func(r int, g *host.Group) error {
		b := &backend.Call{Seq: seq, Kind: k, Op: op, Factor: factor(r), Root: root}
		var want func(i int) float64
		switch k {
		case backend.AllReduce, backend.Reduce:
			b.Src = filled(a, g, dt, r, 0, c)
			if k == backend.AllReduce || r == root {
				b.Dst = a(g, dt, c)
				if inPlace {
					b.Dst = b.Src
				}
			}
			want = func(i int) float64 { return combined(dt, op, n, func(s int) float64 { return element(s, i) }) }
		case backend.Broadcast:
			b.Dst = a(g, dt, c)
			if r == root {
				b.Src = filled(a, g, dt, r, 0, c)
				if inPlace {
					b.Dst = b.Src
				}
			}
			want = func(i int) float64 { return element(root, i) }
		case backend.AllGather:
			b.Dst, b.Src = a(g, dt, n*c), filled(a, g, dt, r, 0, c)
			if inPlace {
				b.Dst = filled(a, g, dt, r, -r*c, n*c)
				b.Src = b.Dst.Range(r*c, (r+1)*c)
			}
			want = func(i int) float64 { return element(i/c, i%c) }
		case backend.ReduceScatter:
			b.Dst, b.Src = a(g, dt, c), filled(a, g, dt, r, 0, n*c)
			if inPlace {
				b.Dst = b.Src.Range(r*c, (r+1)*c)
			}
			want = func(i int) float64 {
				return combined(dt, op, n, func(s int) float64 { return element(s, r*c+i) })
			}
		case backend.Gather:
			b.Src = filled(a, g, dt, r, 0, c)
			if r == root {
				b.Dst = a(g, dt, n*c)
			}
			want = func(i int) float64 { return element(i/c, i%c) }
		case backend.Scatter:
			b.Dst = a(g, dt, c)
			if r == root {
				b.Src = filled(a, g, dt, r, 0, n*c)
			}
			want = func(i int) float64 { return element(root, r*c+i) }
		case backend.AllToAll:
			b.Dst, b.Src = a(g, dt, n*c), filled(a, g, dt, r, 0, n*c)
			want = func(i int) float64 { return element(i/c, r*c+i%c) }
		}
		if err := call(g, b); err != nil {
			return err
		}
		return expect(fmt.Sprintf("rank %d of %d: %v %v", r, n, b, op), b.Dst, want)
	})
}

var (
	collectives = []backend.Kind{backend.AllReduce, backend.Broadcast, backend.Reduce, backend.AllGather, backend.ReduceScatter, backend.Gather, backend.Scatter, backend.AllToAll, backend.Barrier}
	dtypes      = []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16, device.Int32, device.Int64, device.Uint8}
)

// ops returns the reductions of a type.
func ops(dt device.DType) []backend.ReduceOp {
	all := []backend.ReduceOp{backend.Sum, backend.Avg, backend.Min, backend.Max, backend.Product}
	if dt.IsFloat() {
		all = append(all, backend.PreMulSum)
	}
	return all
}

// The sizes are around every size at which the algorithm changes.
func TestCollectives(t *testing.T) {
	for name, open := range transports {
		for n := 1; n <= 5; n++ {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				groups := open(t, n)
				seq := uint64(0)
				for _, k := range collectives {
					for _, c := range []int{0, 1, 2, 3, 1000, 4096, 4097, 20_011} {
						for i, a := range []alloc{private, shared} {
							seq++
							dt := dtypes[int(seq)%len(dtypes)]
							op := ops(dt)[int(seq)%len(ops(dt))]
							if err := exercise(groups, a, seq, k, op, dt, c, int(seq)%n, i == 1); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			})
		}
	}
}

// The tensors take several pieces.
func TestLargeTensorsMoveInPieces(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3)
			for seq, k := range []backend.Kind{backend.AllReduce, backend.Reduce, backend.Broadcast, backend.ReduceScatter, backend.AllToAll} {
				for _, a := range []alloc{private, shared} {
					if err := exercise(groups, a, uint64(seq), k, backend.Sum, device.Float64, 70_001, 2, false); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// maxInline is the largest Src, in bytes, that is sent in the header.
const maxInline = 16 << 10

// The reductions run inline, on memory that all ranks can access, and staged.
func TestEveryReductionOfEveryType(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 3)
			seq := uint64(0)
			for _, dt := range dtypes {
				for _, op := range ops(dt) {
					for _, c := range []int{257, maxInline/dt.Size() + 100} {
						for _, a := range []alloc{private, shared} {
							for _, k := range []backend.Kind{backend.AllReduce, backend.Reduce, backend.ReduceScatter} {
								seq++
								if err := exercise(groups, a, seq, k, op, dt, c, 1, false); err != nil {
									t.Fatal(err)
								}
							}
						}
					}
				}
			}
		})
	}
}

// The sum of these numbers depends on the order of addition. All ranks must have the same bits.
func TestResultsAreBitwiseEqual(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			const n = 4
			groups := open(t, n)
			for seq, c := range []int{1, 100, 5000, 123_457} {
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
				err := each(groups, func(r int, g *host.Group) error {
					results[r] = make([]float32, c)
					return call(g, &backend.Call{
						Seq: uint64(seq), Kind: backend.AllReduce,
						Dst: device.HostTensor(results[r], device.Invalid), Src: device.HostTensor(srcs[r], device.Invalid),
					})
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
	groups := transports["inproc"](t, 3)
	for seq, op := range []backend.ReduceOp{backend.Min, backend.Max, backend.Sum} {
		for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
			err := each(groups, func(r int, g *host.Group) error {
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

// Some blocks are empty.
func TestUnevenAllGather(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			const n = 4
			groups := open(t, n)
			for seq, counts := range [][]int{{0, 0, 0, 0}, {1, 0, 3, 2}, {5000, 0, 100, 70_000}, {100_000, 1, 0, 2}} {
				for _, a := range []alloc{private, shared} {
					total := 0
					for _, c := range counts {
						total += c
					}
					err := each(groups, func(r int, g *host.Group) error {
						dst, src := a(g, device.Int32, total), filled(a, g, device.Int32, r, 0, counts[r])
						if err := call(g, &backend.Call{Seq: uint64(seq), Kind: backend.AllGather, Dst: dst, Src: src, Counts: counts}); err != nil {
							return err
						}
						i := 0
						for s, c := range counts {
							if err := expect(fmt.Sprint("block ", s), dst.Range(i, i+c), func(i int) float64 { return element(s, i) }); err != nil {
								return err
							}
							i += c
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// All ranks start the same random sequence of collectives and messages without waiting, and check
// the results at the end.
func TestManyCallsInFlight(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			const n, calls = 3, 100
			groups := open(t, n)
			err := each(groups, func(r int, g *host.Group) error {
				rng := rand.New(rand.NewPCG(7, 11)) // the same sequence on all ranks
				var checks []func() error
				for seq := range uint64(calls) {
					c := int(math.Exp(rng.Float64() * 11))
					a := []alloc{private, shared}[rng.IntN(2)]
					b := &backend.Call{Seq: seq, Kind: backend.AllReduce}
					want := func(i int) float64 {
						return combined(device.Float32, backend.Sum, n, func(s int) float64 { return element(s, int(seq)+i) })
					}
					switch rng.IntN(4) {
					case 0: // all ranks send first, and then receive
						next, prev := (r+1)%n, (r+n-1)%n
						task, err := g.Start(&backend.Call{Seq: seq, Kind: backend.Send, Root: next, Src: filled(a, g, device.Float32, r, int(seq), c)})
						if err != nil {
							return err
						}
						checks = append(checks, func() error { return task.Sync(context.Background()) })
						b = &backend.Call{Seq: seq, Kind: backend.Recv, Root: prev, Dst: a(g, device.Float32, c)}
						want = func(i int) float64 { return element(prev, int(seq)+i) }
					case 1:
						b.Kind, b.Root = backend.Broadcast, rng.IntN(n)
						b.Dst = a(g, device.Float32, c)
						if r == b.Root {
							b.Src = filled(a, g, device.Float32, r, int(seq), c)
						}
						want = func(i int) float64 { return element(b.Root, int(seq)+i) }
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

// A Group holds a reduction and messages between all ranks.
func TestGroupOfCalls(t *testing.T) {
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			const n, c = 3, 100_000
			groups := open(t, n)
			err := each(groups, func(r int, g *host.Group) error {
				sum := filled(private, g, device.Int64, r, 0, c)
				parts := []*backend.Call{{Seq: 1, Kind: backend.AllReduce, Dst: sum, Src: sum}}
				var got [n]device.Tensor
				for s := range n {
					if s == r {
						continue
					}
					got[s] = private(g, device.Uint8, c)
					parts = append(parts,
						&backend.Call{Seq: 1, Kind: backend.Send, Root: s, Src: filled(private, g, device.Uint8, r, s, c)},
						&backend.Call{Seq: 1, Kind: backend.Recv, Root: s, Dst: got[s]})
				}
				task, err := g.Start(&backend.Call{Seq: 2, Kind: backend.Group, Calls: parts})
				if err != nil {
					return err
				}
				if err := task.Sync(context.Background()); err != nil {
					return err
				}
				if state, _ := task.State(); state != backend.Done {
					return fmt.Errorf("state %v after Sync", state)
				}
				if began, done := task.Span(); began.IsZero() || done.Before(began) {
					return fmt.Errorf("ran from %v to %v", began, done)
				}
				for s := range n {
					if s == r {
						continue
					}
					if err := expect("message", got[s], func(i int) float64 { return element(s, r+i) }); err != nil {
						return err
					}
				}
				return expect("sum", sum, func(i int) float64 {
					return combined(device.Int64, backend.Sum, n, func(s int) float64 { return element(s, i) })
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			if task, err := groups[0].Start(&backend.Call{Kind: backend.Group}); err != nil || task.Sync(t.Context()) != nil {
				t.Fatal("a Group of nothing failed")
			}
		})
	}
}
