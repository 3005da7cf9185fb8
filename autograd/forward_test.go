package autograd_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Operations that move, pick or add elements return the documented values. Finite differences cannot show this: an
// operation on the wrong elements has a consistent gradient.
func TestForward(t *testing.T) {
	dev := newDevice(t)
	x := autograd.FromSlice(dev, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	ids := autograd.FromSlice(dev, []int64{1, 2, 3, 4, 5, 6}, 2, 3)
	big := autograd.FromSlice(dev, []int64{1, 1 << 60, 1<<60 + 1, -3}) // float64 cannot represent 1<<60 + 1
	few := autograd.FromSlice(dev, []float32{2, 4, 4, 2, math.MaxFloat32, 0}, 2, 3)
	mask := autograd.FromSlice(dev, []uint8{1, 0, 0, 0, 1, 1}, 2, 3)
	index := func(at []int64, shape ...int) *autograd.Variable { return autograd.FromSlice(dev, at, shape...) }
	ln := math.Log
	for _, c := range []struct {
		name  string
		got   *autograd.Variable
		shape device.Shape
		want  []float64
	}{
		{"Sub", autograd.Sub(x, autograd.FromSlice(dev, []float32{1, 2}, 2, 1)), device.Shape{2, 3}, []float64{0, 1, 2, 2, 3, 4}},
		{"AddScalar", autograd.AddScalar(x, 0.5), device.Shape{2, 3}, []float64{1.5, 2.5, 3.5, 4.5, 5.5, 6.5}},
		{"MulScalar", autograd.MulScalar(x, 2), device.Shape{2, 3}, []float64{2, 4, 6, 8, 10, 12}},
		{"Log", autograd.Log(x), device.Shape{2, 3}, []float64{0, ln(2), ln(3), ln(4), ln(5), ln(6)}},
		{"SwiGLU", autograd.SwiGLU(autograd.Log(x), x), device.Shape{2, 3}, []float64{0, 4. / 3 * ln(2), 9. / 4 * ln(3), 16. / 5 * ln(4), 25. / 6 * ln(5), 36. / 7 * ln(6)}},
		{"Sum", autograd.Sum(x), device.Shape{}, []float64{21}},
		{"Sum to [3]", autograd.Sum(x, 3), device.Shape{3}, []float64{5, 7, 9}},
		{"Sum to [2 1]", autograd.Sum(x, 2, 1), device.Shape{2, 1}, []float64{6, 15}},
		{"Mean", autograd.Mean(x), device.Shape{}, []float64{3.5}},
		{"Mean to [1 3]", autograd.Mean(x, 1, 3), device.Shape{1, 3}, []float64{2.5, 3.5, 4.5}},
		{"MatMulT", autograd.MatMulT(x, false, x, true), device.Shape{2, 2}, []float64{14, 32, 32, 77}},
		{"MSELoss", autograd.MSELoss(x, autograd.Zeros(dev, device.Float32, 2, 3)), device.Shape{}, []float64{91. / 6}},
		{"CrossEntropyLoss", autograd.CrossEntropyLoss(autograd.Log(x), autograd.FromSlice(dev, []int64{2, 0})), device.Shape{}, []float64{-(ln(3./6) + ln(4./15)) / 2}},
		{"Softmax", autograd.Softmax(autograd.Log(x), 0), device.Shape{2, 3}, []float64{1. / 5, 2. / 7, 3. / 9, 4. / 5, 5. / 7, 6. / 9}},
		{"LogSoftmax", autograd.LogSoftmax(autograd.Log(x), -1), device.Shape{2, 3}, []float64{ln(1. / 6), ln(2. / 6), ln(3. / 6), ln(4. / 15), ln(5. / 15), ln(6. / 15)}},
		{"Labels", autograd.FromSlice(dev, []int64{3, 1}), device.Shape{2}, []float64{3, 1}},

		{"Reshape", autograd.Reshape(ids, -1, 2), device.Shape{3, 2}, []float64{1, 2, 3, 4, 5, 6}},
		{"Flatten", autograd.Flatten(autograd.Reshape(ids, 1, 2, 3), 1), device.Shape{1, 6}, []float64{1, 2, 3, 4, 5, 6}},
		{"Permute", autograd.Permute(autograd.Reshape(ids, 1, 2, 3), 2, 0, -2), device.Shape{3, 1, 2}, []float64{1, 4, 2, 5, 3, 6}},
		{"Transpose", autograd.Transpose(ids, 0, -1), device.Shape{3, 2}, []float64{1, 4, 2, 5, 3, 6}},
		{"Slice", autograd.Slice(ids, 1, 1, 3, 1), device.Shape{2, 2}, []float64{2, 3, 5, 6}},
		{"Slice of rows", autograd.Slice(ids, 0, -1, math.MaxInt, 1), device.Shape{1, 3}, []float64{4, 5, 6}},
		{"Slice by steps", autograd.Slice(ids, -1, -3, 3, 2), device.Shape{2, 2}, []float64{1, 3, 4, 6}},
		{"Concat", autograd.Concat(1, ids, autograd.Slice(ids, 1, 0, 1, 1)), device.Shape{2, 4}, []float64{1, 2, 3, 1, 4, 5, 6, 4}},
		{"Concat of rows", autograd.Concat(-2, x, autograd.Neg(x)), device.Shape{4, 3}, []float64{1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6}},
		{"Stack", autograd.Stack(-1, x, autograd.Neg(x)), device.Shape{2, 3, 2}, []float64{1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6}},
		{"Expand", autograd.Expand(autograd.Slice(x, 1, 2, 3, 1), 2, 2, 2), device.Shape{2, 2, 2}, []float64{3, 3, 6, 6, 3, 3, 6, 6}},

		{"IndexSelect", autograd.IndexSelect(x, 1, index([]int64{2, 0}, 2)), device.Shape{2, 2}, []float64{3, 1, 6, 4}},
		{"Embedding", autograd.Embedding(x, index([]int64{1, 0, 1}, 3, 1), -1), device.Shape{3, 1, 3}, []float64{4, 5, 6, 1, 2, 3, 4, 5, 6}},
		{"Gather", autograd.Gather(x, -1, index([]int64{2, 2, 0, 1}, 2, 2)), device.Shape{2, 2}, []float64{3, 3, 4, 5}},
		{"Gather of rows", autograd.Gather(x, 0, index([]int64{1, 0, 1}, 1, 3)), device.Shape{1, 3}, []float64{4, 2, 6}},

		{"Equal", autograd.Equal(few, autograd.FromSlice(dev, []float32{4})), device.Shape{2, 3}, []float64{0, 1, 1, 0, 0, 0}},
		{"NotEqual", autograd.NotEqual(few, autograd.FromSlice(dev, []float32{4})), device.Shape{2, 3}, []float64{1, 0, 0, 1, 1, 1}},
		{"Less", autograd.Less(few, autograd.FromSlice(dev, []float32{2})), device.Shape{2, 3}, []float64{0, 0, 0, 0, 0, 1}},
		{"LessEqual", autograd.LessEqual(few, autograd.FromSlice(dev, []float32{2})), device.Shape{2, 3}, []float64{1, 0, 0, 1, 0, 1}},
		{"Greater", autograd.Greater(big, index([]int64{1 << 60}, 1)), device.Shape{4}, []float64{0, 0, 1, 0}},
		{"GreaterEqual", autograd.GreaterEqual(big, index([]int64{1 << 60}, 1)), device.Shape{4}, []float64{0, 1, 1, 0}},
		{"Where", autograd.Where(autograd.Greater(big, index([]int64{1}, 1)), index([]int64{7}, 1), big), device.Shape{4}, []float64{1, 7, 7, -3}},
		{"MaskedFill", autograd.MaskedFill(x, mask, -7), device.Shape{2, 3}, []float64{-7, 2, 3, 4, -7, -7}},
		{"ArgMax", autograd.ArgMax(few, 1), device.Shape{2}, []float64{1, 1}}, // the first of equal elements
		{"ArgMin", autograd.ArgMin(few, 0), device.Shape{3}, []float64{0, 0, 1}},
		{"Max", autograd.Max(few, 2, 1), device.Shape{2, 1}, []float64{4, math.MaxFloat32}},
		{"Min", autograd.Min(few, 3), device.Shape{3}, []float64{2, 4, 0}},
	} {
		if !c.got.Shape().Equal(c.shape) {
			t.Errorf("%s: shape %v, want %v", c.name, c.got.Shape(), c.shape)
		}
		near(t, c.name, read(t, c.got), c.want, 1e-6)
	}
}

// reference is a tensor of four axes.
type reference struct {
	shape [4]int
	data  []float64
}

func newReference(rng *rand.Rand, shape ...int) reference {
	return reference{[4]int(shape), values(rng, device.Shape(shape).Len(), -2, 2)}
}

func (r reference) on(dev device.Device) *autograd.Variable {
	return autograd.FromSlice(dev, r.data, r.shape[:]...)
}

// at returns an element, and whether there is one.
func (r reference) at(a, b, c, d int) (v float64, ok bool) {
	if c < 0 || c >= r.shape[2] || d < 0 || d >= r.shape[3] {
		return 0, false
	}
	return r.data[((a*r.shape[1]+b)*r.shape[2]+c)*r.shape[3]+d], true
}

// Convolutions and pooling compute the sums of their definition, in both layouts.
func TestForwardOfWindows(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	x, w, b := newReference(rng, 2, 4, 7, 6), newReference(rng, 6, 2, 3, 2), values(rng, 6, -1, 1)
	stride, padding, dilation := [2]int{2, 1}, [2]int{1, 2}, [2]int{1, 3}
	conv := func(n, o, i, j int) (sum float64) {
		sum = b[o]
		for in := range 2 {
			for ki := range 3 {
				for kj := range 2 {
					v, _ := x.at(n, o/3*2+in, i*2-1+ki, j-2+3*kj)
					f, _ := w.at(o, in, ki, kj)
					sum += v * f
				}
			}
		}
		return sum
	}
	// pooled returns the maximum and the mean of a window of 3 by 2 elements, with and without its padding.
	pooled := func(n, c, i, j int) (most, mean, inside float64) {
		most, count := math.Inf(-1), 0.0
		for ki := range 3 {
			for kj := range 2 {
				if v, ok := x.at(n, c, i*2-1+ki, j-1+kj); ok {
					most, mean, count = max(most, v), mean+v/6, count+1
				}
			}
		}
		return most, mean, mean * 6 / count
	}
	window := func(last, exclude bool) *autograd.Pool2dOptions {
		return &autograd.Pool2dOptions{Stride: stride, Padding: [2]int{1, 1}, ChannelsLast: last, ExcludePadding: exclude}
	}
	wide := reference{[4]int{1, 1, 1, 5}, []float64{1, 2, 3, 4, 5}}
	for name, c := range map[string]struct {
		f    func(x *autograd.Variable, last bool) *autograd.Variable
		of   reference
		want func(n, c, i, j int) float64
		to   [4]int
	}{
		"Conv2d": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.Conv2d(x, w.on(dev), autograd.FromSlice(dev, b), &autograd.Conv2dOptions{Stride: stride, Padding: padding, Dilation: dilation, Groups: 2, ChannelsLast: last})
		}, x, conv, [4]int{2, 6, 4, 7}},
		"MaxPool2d": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.MaxPool2d(x, [2]int{3, 2}, window(last, false))
		}, x, func(n, c, i, j int) float64 { most, _, _ := pooled(n, c, i, j); return most }, [4]int{2, 4, 4, 7}},
		"AvgPool2d": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.AvgPool2d(x, [2]int{3, 2}, window(last, false))
		}, x, func(n, c, i, j int) float64 { _, mean, _ := pooled(n, c, i, j); return mean }, [4]int{2, 4, 4, 7}},
		"AvgPool2d without the padding": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.AvgPool2d(x, [2]int{3, 2}, window(last, true))
		}, x, func(n, c, i, j int) float64 { _, _, inside := pooled(n, c, i, j); return inside }, [4]int{2, 4, 4, 7}},
		"MaxPool2d, Ceil": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.MaxPool2d(x, [2]int{1, 2}, &autograd.Pool2dOptions{Stride: [2]int{1, 2}, Ceil: true, ChannelsLast: last})
		}, wide, func(_, _, _, j int) float64 { return []float64{2, 4, 5}[j] }, [4]int{1, 1, 1, 3}},
		"AdaptiveAvgPool2d": {func(x *autograd.Variable, last bool) *autograd.Variable {
			return autograd.AdaptiveAvgPool2d(x, 1, 3, &autograd.Pool2dOptions{ChannelsLast: last})
		}, wide, func(_, _, _, j int) float64 { return []float64{1.5, 3, 4.5}[j] }, [4]int{1, 1, 1, 3}},
	} {
		var want []float64
		for n := range c.to[0] {
			for o := range c.to[1] {
				for i := range c.to[2] {
					for j := range c.to[3] {
						want = append(want, c.want(n, o, i, j))
					}
				}
			}
		}
		for _, last := range []bool{false, true} {
			f := func(v []*autograd.Variable) *autograd.Variable { return c.f(v[0], last) }
			if last {
				f = channelsLast(f)
			}
			y := f(variables{c.of.on(dev)})
			if !y.Shape().Equal(c.to[:]) {
				t.Errorf("%s: shape %v, want %v", name, y.Shape(), c.to)
			}
			near(t, name, read(t, y), want, 1e-12)
		}
	}
}

// Normalisations divide the deviations of their groups of elements by the groups' standard deviations.
func TestForwardOfNormalizations(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	const eps = 0.3
	x, w, b := newReference(rng, 2, 4, 3, 1), values(rng, 4, 0.5, 2), values(rng, 4, -1, 1)
	of := func(data []float64) *autograd.Variable { return autograd.FromSlice(dev, data) }
	mean, variance := []float64{0.1, 0.2, 0.3, 0.4}, []float64{1, 2, 3, 4}
	// normed normalizes the elements with the same group, and then scales and shifts them by channel.
	normed := func(group func(i int) int, centered bool, channel func(i int) int) (want []float64) {
		for i, v := range x.data {
			var n, sum, squares float64
			for j, other := range x.data {
				if group(j) == group(i) {
					n, sum, squares = n+1, sum+other, squares+other*other
				}
			}
			mean := sum / n
			if !centered {
				mean = 0
			}
			y := (v - mean) / math.Sqrt(squares/n-mean*mean+eps)
			if channel != nil {
				y *= w[channel(i)]
				if centered {
					y += b[channel(i)]
				}
			}
			want = append(want, y)
		}
		return want
	}
	plane := func(i int) int { return i / 3 % 4 } // the channel of an element of [2 4 3 1]
	last := func(i int) int { return i % 4 }
	byChannel := func(in []float64) (want []float64) {
		for i, v := range in {
			want = append(want, (v-mean[plane(i)])/math.Sqrt(variance[plane(i)]+eps)*w[plane(i)]+b[plane(i)])
		}
		return want
	}
	image, rows := x.on(dev), autograd.FromSlice(dev, x.data, 6, 4)
	sum, layer := autograd.AddLayerNorm(autograd.MulScalar(rows, 0.25), autograd.MulScalar(rows, 0.75), []int{4}, of(w), of(b), eps)
	_, rms := autograd.AddRMSNorm(autograd.MulScalar(rows, 0.25), autograd.MulScalar(rows, 0.75), []int{4}, of(w), eps)
	residual := normed(plane, true, plane)
	for i, v := range x.data {
		residual[i] = max(residual[i]+v, 0)
	}
	for name, c := range map[string]struct {
		got  *autograd.Variable
		want []float64
	}{
		"LayerNorm":                 {autograd.LayerNorm(rows, []int{4}, of(w), of(b), eps), normed(func(i int) int { return i / 4 }, true, last)},
		"AddLayerNorm's sum":        {sum, x.data},
		"AddLayerNorm":              {layer, normed(func(i int) int { return i / 4 }, true, last)},
		"AddRMSNorm":                {rms, normed(func(i int) int { return i / 4 }, false, last)},
		"BatchNorm, residual, ReLU": {autograd.BatchNorm(image, of(w), of(b), &autograd.BatchNormOptions{Eps: eps, Residual: image, ReLU: true}), residual},
		"LayerNorm of two":          {autograd.LayerNorm(autograd.FromSlice(dev, x.data, 4, 3, 2), []int{3, 2}, nil, nil, eps), normed(func(i int) int { return i / 6 }, true, nil)},
		"RMSNorm":                   {autograd.RMSNorm(rows, []int{4}, of(w), eps), normed(func(i int) int { return i / 4 }, false, last)},
		"GroupNorm":                 {autograd.GroupNorm(image, 2, of(w), of(b), eps), normed(func(i int) int { return i / 6 }, true, plane)},
		"BatchNorm":                 {autograd.BatchNorm(image, of(w), of(b), &autograd.BatchNormOptions{Eps: eps}), normed(plane, true, plane)},
		"BatchNorm, last":           {autograd.BatchNorm(rows, of(w), of(b), &autograd.BatchNormOptions{Eps: eps, ChannelsLast: true}), normed(last, true, last)},
		"BatchNorm, Evaluate":       {autograd.BatchNorm(image, of(w), of(b), &autograd.BatchNormOptions{Eps: eps, Evaluate: true, Mean: of(mean), Variance: of(variance)}), byChannel(x.data)},
	} {
		near(t, name, read(t, c.got), c.want, 1e-12)
	}
}

// Attention is softmax(q·kᵀ·scale + mask)·v.
func TestForwardOfAttention(t *testing.T) {
	dev := newDevice(t)
	rng := rand.New(rand.NewPCG(1, 2))
	q, k, v := newReference(rng, 2, 4, 3, 5), newReference(rng, 2, 2, 3, 5), newReference(rng, 2, 2, 3, 5)
	inf := math.Inf(-1)
	added := []float64{0.5, -1, inf, 0, 2, 0, 1, inf, inf}
	allowed := autograd.FromSlice(dev, []uint8{1, 0, 1, 0, 1, 0, 1, 1, 1}, 3, 3)
	for name, c := range map[string]struct {
		opts  autograd.AttentionOptions
		scale float64
		mask  []float64
	}{
		"plain":  {autograd.AttentionOptions{}, 1 / math.Sqrt(5), make([]float64, 9)},
		"causal": {autograd.AttentionOptions{Causal: true, Scale: 0.7}, 0.7, []float64{0, inf, inf, 0, 0, inf, 0, 0, 0}},
		"window": {autograd.AttentionOptions{Causal: true, Window: 2, Scale: 0.7}, 0.7, []float64{0, inf, inf, 0, 0, inf, inf, 0, 0}},
		"added":  {autograd.AttentionOptions{Mask: autograd.FromSlice(dev, added, 3, 3)}, 1 / math.Sqrt(5), added},
		"mask":   {autograd.AttentionOptions{Mask: allowed}, 1 / math.Sqrt(5), []float64{0, inf, 0, inf, 0, inf, 0, 0, 0}},
	} {
		var want []float64
		for b := range 2 {
			for h := range 4 { // two heads of q share one of k and v
				for i := range 3 {
					var e [3]float64
					var sum float64
					for j := range 3 {
						for d := range 5 {
							x, _ := q.at(b, h, i, d)
							y, _ := k.at(b, h/2, j, d)
							e[j] += x * y * c.scale
						}
						e[j] = math.Exp(e[j] + c.mask[3*i+j])
						sum += e[j]
					}
					for d := range 5 {
						var o float64
						for j := range 3 {
							x, _ := v.at(b, h/2, j, d)
							o += e[j] / sum * x
						}
						want = append(want, o)
					}
				}
			}
		}
		near(t, name, read(t, autograd.ScaledDotProductAttention(q.on(dev), k.on(dev), v.on(dev), &c.opts)), want, 1e-12)
		c.opts.RowsFirst = true
		first := func(r reference) *autograd.Variable { return autograd.Permute(r.on(dev), 0, 2, 1, 3) }
		near(t, name+", rows first", read(t, autograd.Permute(autograd.ScaledDotProductAttention(first(q), first(k), first(v), &c.opts), 0, 2, 1, 3)), want, 1e-12)
	}
}

// Rotary turns pairs of elements by angles that grow with the row.
func TestForwardOfRotary(t *testing.T) {
	dev := newDevice(t)
	x := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16} // [1 2 2 4]: two rows of two heads
	for _, interleaved := range []bool{false, true} {
		want := append([]float64{}, x...)
		for pair := range 2 {
			i, j := pair, pair+2
			if interleaved {
				i, j = 2*pair, 2*pair+1
			}
			sin, cos := math.Sincos(math.Pow(100, -float64(pair)/2)) // the angle of row 1
			want[8+i], want[8+j] = x[8+i]*cos-x[8+j]*sin, x[8+j]*cos+x[8+i]*sin
		}
		cos, sin := autograd.RotaryAngles(dev, device.Float64, 2, 4, 100)
		y := autograd.Rotary(autograd.FromSlice(dev, x, 1, 2, 2, 4), cos, sin, &autograd.RotaryOptions{Heads: 1, Interleaved: interleaved})
		near(t, "Rotary", read(t, y), want, 1e-12)
	}
}
