package reducer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onRanks runs f on n ranks of one process.
func onRanks(t *testing.T, n int, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	groups, err := comm.Local(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, pg := range groups {
		wg.Go(func() {
			if err := f(pg); err != nil {
				t.Errorf("rank %d: %v", pg.Rank(), err)
				pg.Abort(err)
			}
		})
	}
	wg.Wait()
	for _, pg := range groups {
		pg.Close()
	}
}

// engine stands for an autograd engine: it writes constants as gradients.
type engine struct {
	pg *comm.ProcessGroup
	r  *Reducer
}

// write makes gradient i all v, as an engine does: overwriting or adding, and
// scaling in the last write.
func (e engine) write(i int, v float64) {
	d, dst, acc := e.pg.Device(), e.r.Grad(i), device.Accum{Alpha: e.r.Scale(), Beta: e.r.Scale()}
	if e.r.Fresh(i) {
		acc.Beta = 0
	}
	buf, err := d.Alloc(dst.Bytes())
	if err != nil {
		panic(err)
	}
	defer d.Free(buf)
	x := device.NewTensor(buf, dst.DType, dst.Shape...)
	if err := errors.Join(d.Kernels().Fill(d.Compute(), x, v), d.Kernels().Axpby(d.Compute(), dst, acc, x)); err != nil {
		panic(err)
	}
	e.r.Ready(i, d.Compute().Record())
}

// all is gradient i's value, which must be the same everywhere.
func (e engine) all(i int) (float64, error) {
	var vs []float64
	if t := e.r.Grad(i); t.DType == device.Float32 {
		for _, v := range device.Elements[float32](t) {
			vs = append(vs, float64(v))
		}
	} else {
		vs = device.Elements[float64](t)
	}
	if slices.Min(vs) != slices.Max(vs) {
		return 0, fmt.Errorf("gradient %d is not uniform: %v", i, vs)
	}
	return vs[0], nil
}

func params() []Param {
	return []Param{
		{"a", device.Shape{3, 5}, device.Float32}, {"b", device.Shape{}, device.Float64},
		{"c", device.Shape{100}, device.Float32}, {"d", device.Shape{7}, device.Float64},
	}
}

// Gradients of two types in several buckets, ready in an unexpected order,
// averaged by the reducer or by the engine's scale.
func TestAverages(t *testing.T) {
	for _, prescaled := range []bool{false, true} {
		for _, mb := range []float64{0, 1e-5} {
			t.Run(fmt.Sprintf("prescaled %v, cap %v", prescaled, mb), func(t *testing.T) {
				onRanks(t, 3, func(pg *comm.ProcessGroup) error {
					r, err := New(t.Context(), pg, params(), &Options{Prescaled: prescaled, BucketCapMB: mb})
					if err != nil {
						return err
					}
					e := engine{pg, r}
					for pass := range 4 {
						r.Begin(true)
						for _, i := range []int{1, 3, 0, 2} {
							r.Zero(i)
							e.write(i, float64(pass+10*i+pg.Rank()*3))
						}
						if err := r.Finish(t.Context(), nil); err != nil {
							return err
						}
						for i := range 4 {
							got, err := e.all(i)
							if err != nil {
								return err
							}
							if want := float64(pass + 10*i + 3); got-want > 1e-5 || want-got > 1e-5 {
								return fmt.Errorf("pass %d: gradient %d is %v, want %v", pass, i, got, want)
							}
						}
					}
					return nil
				})
			})
		}
	}
}

// Two ranks lack different gradients in the same pass: every rank learns both.
func TestSeveralRanksLackGradients(t *testing.T) {
	onRanks(t, 3, func(pg *comm.ProcessGroup) error {
		r, err := New(t.Context(), pg, params(), &Options{Prescaled: true})
		if err != nil {
			return err
		}
		e := engine{pg, r}
		for pass := range 6 {
			lacks := map[int][]int{0: {0, 2}, 2: {1}}[pg.Rank()]
			if pass%3 == 0 {
				lacks = nil
			}
			r.Begin(true)
			for i := range 4 {
				if !slices.Contains(lacks, i) {
					e.write(i, 1)
				}
			}
			err := r.Finish(t.Context(), nil)
			if (r.Err() == nil) != (err == nil) {
				return fmt.Errorf("pass %d: Finish returned %v, Err is %v", pass, err, r.Err())
			}
			if pass%3 == 0 {
				if err != nil {
					return fmt.Errorf("pass %d: %w", pass, err)
				}
				continue
			}
			var m *MissingGradientError
			if !errors.As(err, &m) {
				return fmt.Errorf("pass %d: %v", pass, err)
			}
			for _, want := range []string{`parameters ["c" "a"] on rank 0`, `parameter "b" on rank 2`} {
				if !strings.Contains(err.Error(), want) {
					return fmt.Errorf("pass %d: %q lacks %q", pass, err, want)
				}
			}
		}
		return nil
	})
}

func TestTwoReducersOnOneGroup(t *testing.T) {
	onRanks(t, 2, func(pg *comm.ProcessGroup) error {
		var es []engine
		for range 2 {
			r, err := New(t.Context(), pg, params(), nil)
			if err != nil {
				return err
			}
			es = append(es, engine{pg, r})
		}
		for k, e := range es {
			e.r.Begin(true)
			for i := range 4 {
				if k == 1 && i == 3 && pg.Rank() == 1 {
					continue
				}
				e.write(i, float64(k))
			}
		}
		if err := es[0].r.Finish(t.Context(), nil); err != nil {
			return err
		}
		err := es[1].r.Finish(t.Context(), nil)
		if m := (*MissingGradientError)(nil); !errors.As(err, &m) || m.Missing[0].Rank != 1 || m.Missing[0].Params[0] != "d" {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

func TestOptionsAreChecked(t *testing.T) {
	onRanks(t, 1, func(pg *comm.ProcessGroup) error {
		if _, err := New(t.Context(), pg, params(), &Options{BucketCapMB: -1}); err == nil || !strings.Contains(err.Error(), "-1") {
			return fmt.Errorf("a negative cap: %v", err)
		}
		if _, err := New(t.Context(), pg, nil, nil); err == nil {
			return errors.New("no parameters: no error")
		}
		return nil
	})
}

func TestCaps(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want []int
	}{
		{Options{}, []int{1 << 20, 25 << 20}},
		{Options{BucketCapMB: 25}, []int{25 << 20, 25 << 20}},
		{Options{BucketCapMB: 10, FirstBucketCapMB: 0.5}, []int{1 << 19, 10 << 20}},
		{Options{FirstBucketCapMB: 2}, []int{2 << 20, 25 << 20}},
	} {
		if got, err := c.o.caps(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, %v, want %v", c.o, got, err, c.want)
		}
	}
}
