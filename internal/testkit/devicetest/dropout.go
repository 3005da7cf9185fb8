package devicetest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

func checkDropout(r *rig) {
	each(r, draws, func(d draw) {
		x := withNaN(r.random(-2, 2, d.n))
		px := r.put(x)
		for _, p := range []float64{0, 0.1, 0.5, 1} {
			want := value{array: newArray(d.n), c: 8}
			for i, v := range x.v {
				e := d.offset + uint64(i)
				factor := 1 / (1 - p)
				if float64(words(d.seed, e/4, 2)[e%4]) < math.Floor(p*(1<<32)) {
					factor = 0
				}
				want.v[i] = v * factor
			}
			want.scale = mapped(func(v ...float64) float64 { return 2 * math.Abs(v[0]) }, want.array).v
			for i, v := range want.v {
				if v != v {
					want.scale[i] = 0
				}
			}
			from := r.place(device.Int64, device.Shape{}, binary.NativeEndian.AppendUint64(nil, 3)).Tensor
			label := fmt.Sprintf("Dropout of %v, p %v, seed %d, offset %d", px.Tensor, p, d.seed, d.offset)
			r.accumulates(label, want, func(dst device.Tensor, acc device.Accum) error {
				return r.k.Dropout(r.s, dst, acc, px.Tensor, p, kernels.Position{Seed: d.seed, Offset: d.offset})
			})
			r.from(label+", in place", x, want, func(dst device.Tensor) error {
				return r.k.Dropout(r.s, dst, device.Store, dst, p, kernels.Position{Seed: d.seed, Offset: d.offset - 3, From: from})
			})
		}
	})
}
