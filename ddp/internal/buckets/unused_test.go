package buckets

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
)

// The status is in the last bucket and has the element type of this bucket. With each element type, all
// ranks learn which gradients some rank has. With UnusedFixed the ranks exchange this only in the first
// pass.
func TestStatusOfAllTypes(t *testing.T) {
	for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
		for _, unused := range []Unused{UnusedFound, UnusedFixed} {
			t.Run(fmt.Sprintf("%v, %v", dt, unused), func(t *testing.T) {
				commtest.OnDevices(t, lagging(3), nil, func(pg *comm.ProcessGroup) error {
					var ps []reducer.Param
					for _, name := range []string{"some", "none", "all"} {
						ps = append(ps, reducer.Param{Name: name, Shape: device.Shape{5}, DType: dt})
					}
					r := must.New(New(t.Context(), pg, ps, &Options{Prescaled: true, Unused: unused}))
					d := pg.Device()
					for pass := range 3 {
						r.zeroAll()
						uses := func(i int) bool { return i == 2 || i == 0 && pg.Rank() == 1 }
						r.Begin(true, uses)
						for _, i := range reversed(3) {
							if !uses(i) {
								continue
							}
							r.State(i).Write()
							if err := d.Kernels().Fill(d.Compute(), r.Grad(i), 3); err != nil {
								return err
							}
							r.Ready(i, d.Compute().Mark())
						}
						if err := errors.Join(r.Finish(t.Context(), nil), r.Err()); err != nil {
							return err
						}
						if !isWritten(r, 0) || isWritten(r, 1) || !isWritten(r, 2) {
							return fmt.Errorf("pass %d: zeroed are %v, want the second", pass, r.states)
						}
					}
					wroteStatus := len(bytes.Trim(r.status.words.Buf.Host(), "\x00")) > 0
					if wroteStatus != (unused == UnusedFound) {
						return fmt.Errorf("the status of the last pass is not zero: %v", wroteStatus)
					}
					return nil
				})
			})
		}
	}
}

// If an engine calls Ready for a gradient after it told Begin that the pass will not write it, Ready
// panics.
func TestReadyOfUnusedGradientIsMistake(t *testing.T) {
	commtest.OnRanks(t, 1, nil, func(pg *comm.ProcessGroup) error {
		r := must.New(New(t.Context(), pg, params(), &Options{Unused: UnusedFound}))
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, errReadyUnused) {
				t.Errorf("panicked with %v", err)
			}
		}()
		r.Begin(true, func(i int) bool { return i != 1 })
		r.Ready(1, nil)
		return nil
	})
}
