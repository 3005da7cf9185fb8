package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/torchtest"
)

// parity collects computations on tensors of random shapes. Their results are compared with PyTorch's.
type parity struct {
	*rand.Rand
	cases []torchtest.Case
	loose bool // whether the next computations have sums of many terms
}

// Operations and their gradients equal PyTorch's for random shapes.
func TestOperationsArePyTorchs(t *testing.T) {
	testkit.Long(t)
	p := &parity{Rand: rand.New(rand.NewPCG(3, 4))}
	for range 100 {
		p.loose = false
		p.elementwise()
		p.matrices()
		p.layout()
		p.selection()
		p.indexing()
		p.loss()
		p.attention()
		p.loose = true
		p.convolution()
		p.pooling()
		p.normalization()
	}
	torchtest.Check(t, p.cases)
}

// add adds a computation, mostly in float64.
func (p *parity) add(expr string, f func(x variables) *autograd.Variable, in ...torchtest.Input) {
	c := torchtest.Case{Name: expr + " of", Expr: expr, In: in, DType: device.Float64, Go: f}
	if len(p.cases)%4 == 3 {
		c.DType = device.Float32
	}
	if p.loose {
		c.Tolerance = map[device.DType]float64{device.Float32: 1e-4, device.Float64: 1e-9}[c.DType]
	}
	for _, x := range in {
		c.Name += fmt.Sprint(" ", x.Shape)
	}
	p.cases = append(p.cases, c)
}

// input returns numbers from [lo, hi) that are not near 0 and that Float32 represents exactly.
func (p *parity) input(lo, hi float64, shape ...int) torchtest.Input {
	v := values(p.Rand, device.Shape(shape).Len(), lo, hi)
	for i := range v {
		v[i] = float64(float32(v[i]))
	}
	return torchtest.Input{Shape: shape, Numbers: v}
}

func (p *parity) numbers(shape ...int) torchtest.Input { return p.input(-2, 2, shape...) }

// few returns numbers of which some are equal and rarely one is NaN.
func (p *parity) few(shape ...int) torchtest.Input {
	in := p.numbers(shape...)
	for i := range in.Numbers {
		if in.Numbers[i] = float64(p.IntN(7) - 3); p.IntN(60) == 0 {
			in.Numbers[i] = math.NaN()
		}
	}
	return in
}

// indices returns indices below n.
func (p *parity) indices(n int, shape ...int) torchtest.Input {
	at := make([]int64, device.Shape(shape).Len())
	for i := range at {
		at[i] = p.Int64N(int64(n))
	}
	return torchtest.Input{Shape: shape, Integers: at}
}

func constant(in torchtest.Input) torchtest.Input {
	in.Constant = true
	return in
}

// size returns a size up to most, rarely 0.
func (p *parity) size(most int) int {
	if p.IntN(20) == 0 {
		return 0
	}
	return 1 + p.IntN(most)
}

func (p *parity) shape(axes int) []int {
	shape := make([]int, axes)
	for i := range shape {
		shape[i] = p.size(5)
	}
	return shape
}

// smaller returns a shape that broadcasts to shape.
func (p *parity) smaller(shape []int) []int {
	small := slices.Clone(shape)
	for i := range small {
		if p.IntN(2) == 0 {
			small[i] = 1
		}
	}
	return small[p.IntN(len(small)+1):]
}

func (p *parity) two(least, most int) [2]int {
	return [2]int{least + p.IntN(most-least+1), least + p.IntN(most-least+1)}
}

// signed returns the axis unchanged, or counted from the end.
func (p *parity) signed(axis, axes int) int { return axis - axes*p.IntN(2) }

// python formats a list or a truth value.
func python(v any) string {
	s := strings.ReplaceAll(fmt.Sprint(v), " ", ", ")
	return strings.NewReplacer("true", "True", "false", "False").Replace(s)
}

func (p *parity) elementwise() {
	for _, e := range elementwise {
		p.add(e.torch, func(x variables) *autograd.Variable { return e.f(x[0]) }, p.input(e.lo, e.hi, p.shape(p.IntN(5))...))
	}
	shape := p.shape(p.IntN(4))
	p.add("F.silu(x[0]) * x[1]", func(x variables) *autograd.Variable { return autograd.SwiGLU(x[0], x[1]) }, p.input(-4, 4, shape...), p.input(-4, 4, shape...))
	for name, f := range map[string]func(*autograd.Variable, int) *autograd.Variable{"softmax": autograd.Softmax, "log_softmax": autograd.LogSoftmax} {
		shape := p.shape(p.IntN(5))
		axis := p.signed(p.IntN(max(len(shape), 1)), max(len(shape), 1))
		p.add(fmt.Sprintf("F.%s(x[0], %d)", name, axis), func(x variables) *autograd.Variable { return f(x[0], axis) }, p.input(-20, 20, shape...))
	}
}

func (p *parity) matrices() {
	batch := p.shape(p.IntN(4))
	m, k, n := p.IntN(6), p.IntN(6), p.IntN(6)
	p.add("x[0] @ x[1]", func(x variables) *autograd.Variable { return autograd.MatMul(x[0], x[1]) },
		p.numbers(append(p.smaller(batch), m, k)...), p.numbers(append(p.smaller(batch), k, n)...))
}

func (p *parity) layout() {
	axes := 1 + p.IntN(4)
	shape := p.shape(axes)
	x := p.numbers(shape...)
	order := p.Perm(axes)
	for i, axis := range order {
		order[i] = p.signed(axis, axes)
	}
	p.add(fmt.Sprintf("x[0].permute(%s)", python(order)), func(x variables) *autograd.Variable { return autograd.Permute(x[0], order...) }, x)
	a, b := p.signed(p.IntN(axes), axes), p.signed(p.IntN(axes), axes)
	p.add(fmt.Sprintf("x[0].transpose(%d, %d)", a, b), func(x variables) *autograd.Variable { return autograd.Transpose(x[0], a, b) }, x)
	axis, from, to, step := p.IntN(axes), p.IntN(14)-7, p.IntN(14)-7, 1+p.IntN(3)
	p.add(fmt.Sprintf("x[0][%s%d:%d:%d]", strings.Repeat(":, ", axis), from, to, step), func(x variables) *autograd.Variable {
		return autograd.Slice(x[0], axis, from, to, step)
	}, x)
	parts := []torchtest.Input{x}
	for range p.IntN(3) {
		other := slices.Clone(shape)
		other[axis] = p.IntN(4)
		parts = append(parts, p.numbers(other...))
	}
	p.add(fmt.Sprintf("torch.cat(x, %d)", axis), func(x variables) *autograd.Variable { return autograd.Concat(axis, x...) }, parts...)
	at := p.signed(p.IntN(axes+1), axes+1)
	p.add(fmt.Sprintf("torch.stack(x, %d)", at), func(x variables) *autograd.Variable { return autograd.Stack(at, x...) }, x, p.numbers(shape...))
	start := p.signed(axis, axes)
	p.add(fmt.Sprintf("x[0].flatten(%d)", start), func(x variables) *autograd.Variable { return autograd.Flatten(x[0], start) }, x)
	p.add(fmt.Sprintf("x[0].expand(%s)", python(shape)), func(x variables) *autograd.Variable { return autograd.Expand(x[0], shape...) }, p.numbers(p.smaller(shape)...))
}

var comparisons = []struct {
	expr string
	f    func(x, y *autograd.Variable) *autograd.Variable
}{
	{"==", autograd.Equal}, {"!=", autograd.NotEqual}, {"<", autograd.Less}, {"<=", autograd.LessEqual},
	{">", autograd.Greater}, {">=", autograd.GreaterEqual},
}

func (p *parity) selection() {
	axes := 1 + p.IntN(4)
	shape := p.shape(axes)
	c := comparisons[p.IntN(len(comparisons))]
	some := func() torchtest.Input { return p.few(p.smaller(shape)...) }
	p.add(fmt.Sprintf("x[0] %s x[1]", c.expr), func(x variables) *autograd.Variable { return c.f(x[0], x[1]) }, some(), p.few(shape...))
	p.add(fmt.Sprintf("torch.where(x[0] %s x[1], x[2], x[3])", c.expr), func(x variables) *autograd.Variable {
		return autograd.Where(c.f(x[0], x[1]), x[2], x[3])
	}, constant(some()), constant(some()), some(), some())
	p.add("x[0].masked_fill(x[1] > 0, 2.5)", func(x variables) *autograd.Variable {
		return autograd.MaskedFill(x[0], autograd.Greater(x[1], autograd.Zeros(x[1].Device(), x[1].DType())), 2.5)
	}, p.few(shape...), constant(some()))
	axis := p.IntN(axes)
	shape = slices.Clone(shape)
	for i := range shape {
		shape[i] = max(shape[i], 1)
	}
	to, reduced := slices.Clone(shape), []int{}
	for i := range to {
		if p.IntN(2) == 0 || i == axis {
			to[i] = 1
			reduced = append(reduced, i)
		}
	}
	at := p.signed(axis, axes)
	p.add(fmt.Sprintf("x[0].argmax(%d)", at), func(x variables) *autograd.Variable { return autograd.ArgMax(x[0], at) }, p.few(shape...))
	p.add(fmt.Sprintf("x[0].argmin(%d)", at), func(x variables) *autograd.Variable { return autograd.ArgMin(x[0], at) }, p.few(shape...))
	p.add(fmt.Sprintf("x[0].amax(%s, keepdim=True)", python(reduced)), func(x variables) *autograd.Variable { return autograd.Max(x[0], to...) }, p.few(shape...))
	p.add(fmt.Sprintf("x[0].amin(%s, keepdim=True)", python(reduced)), func(x variables) *autograd.Variable { return autograd.Min(x[0], to...) }, p.few(shape...))
	p.add("x[0].amax()", func(x variables) *autograd.Variable { return autograd.Max(x[0]) }, p.few(shape...))
}

func (p *parity) indexing() {
	axes := 1 + p.IntN(4)
	shape, axis := p.shape(axes), p.IntN(axes)
	shape[axis] = 1 + p.IntN(6)
	at := p.signed(axis, axes)
	p.add(fmt.Sprintf("x[0].index_select(%d, x[1])", at), func(x variables) *autograd.Variable { return autograd.IndexSelect(x[0], at, x[1]) },
		p.numbers(shape...), p.indices(shape[axis], p.IntN(9)))
	part := slices.Clone(shape)
	for i := range part {
		part[i] = p.IntN(part[i] + 1)
	}
	part[axis] = p.IntN(7)
	p.add(fmt.Sprintf("x[0].gather(%d, x[1])", at), func(x variables) *autograd.Variable { return autograd.Gather(x[0], at, x[1]) },
		p.numbers(shape...), p.indices(shape[axis], part...))
	n := 1 + p.IntN(20)
	padding := p.IntN(n)
	p.add("F.embedding(x[1], x[0])", func(x variables) *autograd.Variable { return autograd.Embedding(x[0], x[1], -1) },
		p.numbers(n, 1+p.IntN(9)), p.indices(n, p.shape(p.IntN(3))...))
	p.add(fmt.Sprintf("F.embedding(x[1], x[0], %d)", padding), func(x variables) *autograd.Variable { return autograd.Embedding(x[0], x[1], padding) },
		p.numbers(n, 1+p.IntN(9)), p.indices(n, p.shape(p.IntN(3))...))
}

// loss adds a loss of rows of which some are ignored, rarely all.
func (p *parity) loss() {
	rows, classes, k := 1+p.IntN(6), 1+p.IntN(9), 1+p.IntN(5)
	labels := p.indices(classes, rows)
	for i := range labels.Integers {
		if p.IntN(2) == 0 {
			labels.Integers[i] = -100
		}
	}
	reduction := []string{"mean", "sum"}[p.IntN(2)]
	p.add(fmt.Sprintf("F.cross_entropy(x[0] @ x[1].T, x[2], reduction='%s')", reduction), func(x variables) *autograd.Variable {
		return autograd.LinearCrossEntropyLoss(x[0], x[1], x[2], &autograd.LinearLossOptions{IgnoreIndex: &ignored, Sum: reduction == "sum"})
	}, p.numbers(rows, k), p.numbers(classes, k), labels)
}

// attention adds an attention that is causal, one with a mask that is added to the scores, and one of allowed keys, in turn.
func (p *parity) attention() {
	kind, window := p.IntN(3), p.IntN(40)
	b, keyHeads, group, rows, keys, d := p.size(3), 1+p.IntN(3), 1+p.IntN(2), p.size(90), p.size(90), 1+p.IntN(40)
	opts := autograd.AttentionOptions{Causal: kind == 0, Scale: []float64{0, 0.3}[p.IntN(2)]}
	if kind == 0 && keys >= rows { // each query has a key
		opts.Window = window
	}
	scale := opts.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(d))
	}
	mask := constant(p.input(-1, 1, rows, keys))
	var allowed []byte
	scores := fmt.Sprintf("x[0] @ x[1].repeat_interleave(%d, 1).transpose(-1, -2) * %v", group, scale)
	switch kind {
	case 0:
		scores = fmt.Sprintf("(%s).masked_fill(torch.ones(%d, %d, dtype=torch.bool, device=x[0].device).triu(1), float('-inf'))", scores, rows, keys)
		if opts.Window > 0 {
			scores = fmt.Sprintf("(%s).masked_fill(torch.ones(%d, %d, dtype=torch.bool, device=x[0].device).tril(%d), float('-inf'))", scores, rows, keys, -opts.Window)
		}
	case 1:
		scores += " + x[3]"
	case 2: // each query has a key
		scores = fmt.Sprintf("(%s).masked_fill(x[3] <= 0, float('-inf'))", scores)
		for i, m := range mask.Numbers {
			if i%keys == i/keys%keys {
				m = 1
			}
			mask.Numbers[i], allowed = m, append(allowed, byte(max(0, math.Copysign(1, m))))
		}
	}
	p.add(fmt.Sprintf("torch.softmax(%s, -1) @ x[2].repeat_interleave(%d, 1)", scores, group), func(x variables) *autograd.Variable {
		switch kind {
		case 1:
			opts.Mask = x[3]
		case 2:
			opts.Mask = autograd.FromBytes(x[0].Device(), device.Uint8, device.Shape{rows, keys}, allowed)
		}
		return autograd.ScaledDotProductAttention(x[0], x[1], x[2], &opts)
	}, p.input(-1, 1, b, keyHeads*group, rows, d), p.input(-1, 1, b, keyHeads, keys, d), p.input(-1, 1, b, keyHeads, keys, d), mask)
}

// either returns f on images [n c h w], or f with channels last on permuted images.
func (p *parity) either(f func(x variables, last bool) *autograd.Variable) func(x variables) *autograd.Variable {
	if p.IntN(2) == 0 {
		return func(x variables) *autograd.Variable { return f(x, false) }
	}
	return channelsLast(func(x variables) *autograd.Variable { return f(x, true) })
}

func (p *parity) convolution() {
	o := autograd.Conv2dOptions{Stride: p.two(1, 3), Padding: p.two(0, 2), Dilation: p.two(1, 2), Groups: 1 + p.IntN(3)}
	kernel := p.two(1, 4)
	if p.IntN(4) == 0 {
		o.Stride, o.Padding, kernel = twice(1), twice(0), twice(1)
	}
	in, out := 1+p.IntN(3), 1+p.IntN(3)
	size := [2]int{}
	for i := range size { // the kernel fits
		size[i] = max(o.Dilation[i]*(kernel[i]-1)+1-2*o.Padding[i], 1) + p.IntN(7)
	}
	x := []torchtest.Input{p.numbers(p.size(3), in*o.Groups, size[0], size[1]), p.numbers(out*o.Groups, in, kernel[0], kernel[1])}
	bias := "None"
	if p.IntN(2) == 0 {
		x, bias = append(x, p.numbers(out*o.Groups)), "x[2]"
	}
	p.add(fmt.Sprintf("F.conv2d(x[0], x[1], %s, %s, %s, %s, %d)", bias, python(o.Stride), python(o.Padding), python(o.Dilation), o.Groups),
		p.either(func(x variables, last bool) *autograd.Variable {
			o := o
			o.ChannelsLast = last
			return autograd.Conv2d(x[0], x[1], append(x, nil)[2], &o)
		}), x...)
}

func (p *parity) pooling() {
	for kind := range 3 {
		kernel, out := p.two(1, 4), p.two(1, 9)
		w := autograd.Pool2dOptions{Stride: p.two(1, 3), Dilation: twice(1), Ceil: p.IntN(2) == 0}
		if kind == 0 {
			w.Dilation = p.two(1, 2)
		}
		size := [2]int{}
		for i := range size {
			w.Padding[i] = p.IntN(kernel[i]/2 + 1)
			size[i] = max(w.Dilation[i]*(kernel[i]-1)+1-2*w.Padding[i], 1) + p.IntN(7)
			if w.Dilation[i] > 1 { // PyTorch reads out of bounds if a window contains no element of the image
				size[i] += 2 * w.Padding[i]
			}
		}
		expr := fmt.Sprintf("F.max_pool2d(x[0], %s, %s, %s, %s, %s)", python(kernel), python(w.Stride), python(w.Padding), python(w.Dilation), python(w.Ceil))
		switch kind {
		case 1:
			w.ExcludePadding = p.IntN(2) == 0
			expr = fmt.Sprintf("F.avg_pool2d(x[0], %s, %s, %s, %s, %s)", python(kernel), python(w.Stride), python(w.Padding), python(w.Ceil), python(!w.ExcludePadding))
		case 2:
			expr = fmt.Sprintf("F.adaptive_avg_pool2d(x[0], %s)", python(out))
		}
		p.add(expr, p.either(func(x variables, last bool) *autograd.Variable {
			w := w
			w.ChannelsLast = last
			switch kind {
			case 0:
				return autograd.MaxPool2d(x[0], kernel, &w)
			case 1:
				return autograd.AvgPool2d(x[0], kernel, &w)
			}
			return autograd.AdaptiveAvgPool2d(x[0], out[0], out[1], &w)
		}), p.numbers(p.size(3), 1+p.IntN(3), size[0], size[1]))
	}
}

func (p *parity) normalization() {
	// each adds a normalization of x with up to two parameters of shape w, which the expression takes as %[1]s and %[2]s.
	each := func(expr string, f func(x, w, b *autograd.Variable) *autograd.Variable, most int, x, w []int) {
		in, names := []torchtest.Input{p.numbers(x...)}, [2]string{"None", "None"}
		for i := range p.IntN(most + 1) {
			in = append(in, p.numbers(w...))
			names[i] = fmt.Sprintf("x[%d]", i+1)
		}
		p.add(fmt.Sprintf(expr, names[0], names[1]), func(x variables) *autograd.Variable {
			all := append(slices.Clone(x), nil, nil)
			return f(all[0], all[1], all[2])
		}, in...)
	}
	x := p.shape(1 + p.IntN(4))
	last := x[p.IntN(len(x)):]
	each("F.layer_norm(x[0], "+python(last)+", %s, %s, 1e-3)", func(x, w, b *autograd.Variable) *autograd.Variable {
		return autograd.LayerNorm(x, last, w, b, 1e-3)
	}, 2, x, last)
	x = []int{p.size(5), 1 + p.IntN(6)}
	each("(lambda y, w: y if w is None else y * w)(x[0] * torch.rsqrt(x[0].pow(2).mean(-1, keepdim=True) + 1e-3), %s)%.0s", func(x, w, _ *autograd.Variable) *autograd.Variable {
		return autograd.RMSNorm(x, x.Shape()[1:], w, 1e-3)
	}, 1, x, x[1:])
	channels := func(least int) []int {
		x := []int{least + p.IntN(5), 1 + p.IntN(6)}
		for range p.IntN(3) {
			x = append(x, 1+p.IntN(6))
		}
		return x
	}
	x = channels(0)
	if device.Shape(x).Len()/x[1] == 1 { // PyTorch rejects such a batch
		x[0] = 2
	}
	groups := 1 + p.IntN(x[1])
	for x[1]%groups != 0 {
		groups--
	}
	each(fmt.Sprintf("F.group_norm(x[0], %d, %%s, %%s, 1e-3)", groups), func(x, w, b *autograd.Variable) *autograd.Variable {
		return autograd.GroupNorm(x, groups, w, b, 1e-3)
	}, 2, x, x[1:2])
	x = channels(2)
	each("F.batch_norm(x[0], None, None, %s, %s, True, 0.1, 1e-3)", func(x, w, b *autograd.Variable) *autograd.Variable {
		return autograd.BatchNorm(x, w, b, &autograd.BatchNormOptions{Eps: 1e-3})
	}, 2, x, x[1:2])
}
