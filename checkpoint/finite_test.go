package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// The last finite checkpoint stays beside the last Keep ones, whichever Manager saved it. The first checkpoint that is
// not finite is logged; with RequireFinite it fails on all ranks.
func TestKeepsTheLastFiniteCheckpoint(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	commtest.OnGoroutines(t, 2, &comm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(pg *comm.ProcessGroup) error {
		save := func(o Options, last float32, steps ...int) error {
			r, m, err := begin(pg, dir, plain, 1, o)
			if err != nil {
				return err
			}
			params := r.net.Parameters()
			bias := device.Elements[float32](params[len(params)-1].Var().Tensor()) // a part of rank 1's share
			bias[len(bias)-1] = last
			for _, step := range steps {
				err = errors.Join(err, m.Save(t.Context(), step, r.state()))
			}
			return errors.Join(err, m.Close())
		}
		keep, nan := Options{Keep: 2}, float32(math.NaN())
		for _, c := range []struct {
			options Options
			last    float32
			steps   []int
			want    []int  // the steps of the checkpoints that are left
			err     string // "": none
		}{
			{keep, 1, []int{1, 2}, []int{2, 1}, ""},
			{keep, nan, []int{3, 4, 5}, []int{5, 4, 2}, ""},
			{keep, float32(math.Inf(-1)), []int{6}, []int{6, 5, 2}, ""},
			{Options{Keep: 2, RequireFinite: true}, nan, []int{7}, []int{6, 5, 2}, "model/2.bias has a NaN or an Inf"},
			{keep, 1, []int{8}, []int{8, 6}, ""},
			{keep, 1, []int{9}, []int{9, 8}, ""},
		} {
			err := save(c.options, c.last, c.steps...)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				return fmt.Errorf("saving steps %d: %w, want %q", c.steps, err, c.err)
			}
			if pg.Rank() > 0 {
				continue
			}
			all, err := List(dir)
			var left []int
			for _, info := range all {
				left = append(left, info.Step)
			}
			if err != nil || !slices.Equal(left, c.want) {
				return fmt.Errorf("after steps %d the steps %d are left (%v), want %d", c.steps, left, err, c.want)
			}
		}
		return nil
	})
	if n := strings.Count(log.String(), `tensor=model/2.bias`); n != 2 { // of steps 3 and 6: each Manager logs its first
		t.Errorf("%d warnings, want 2, in\n%s", n, &log)
	}
}

// A NaN is found in all types, an Inf everywhere but in buffers.
func TestIsFinite(t *testing.T) {
	const huge = 65504 // the largest Float16
	for dt, encode := range map[device.DType]func(x ...float64) device.Tensor{
		device.Float32:  tensorOf(func(x float64) float32 { return float32(x) }, device.Float32),
		device.Float64:  tensorOf(func(x float64) float64 { return x }, device.Float64),
		device.Float16:  tensorOf(func(x float64) uint16 { return kernels.F16(float32(x)) }, device.Float16),
		device.BFloat16: tensorOf(func(x float64) uint16 { return kernels.BF16(float32(x)) }, device.BFloat16),
		device.Int64:    tensorOf(func(float64) int64 { return -1 }, device.Int64),
	} {
		for _, c := range []struct {
			last               float64
			isFinite, inBuffer bool
		}{{-huge, true, true}, {math.SmallestNonzeroFloat32, true, true}, {math.Inf(1), false, true}, {math.Inf(-1), false, true}, {math.NaN(), false, false}} {
			for _, buffer := range []bool{false, true} {
				want := c.isFinite
				if buffer {
					want = c.inBuffer
				}
				if dt == device.Int64 {
					want = true
				}
				for _, elements := range [][]float64{{0, huge, c.last}, {-1, c.last, huge, 0, 1}} {
					p := &piece{dtype: dt, t: encode(elements...), buffer: buffer}
					if got := p.isFinite(); got != want {
						t.Errorf("%v of %v, buffer %v: finite %v, want %v", elements, dt, buffer, got, want)
					}
				}
			}
		}
	}
}

// tensorOf returns a function that makes a tensor of numbers in the host's memory.
func tensorOf[T device.Element](encode func(x float64) T, dt device.DType) func(x ...float64) device.Tensor {
	return func(x ...float64) device.Tensor {
		data := make([]byte, len(x)*dt.Size())
		t := device.NewTensor(device.HostBuffer(data, nil), dt, len(x))
		for i := range x {
			device.Elements[T](t)[i] = encode(x[i])
		}
		return t
	}
}
