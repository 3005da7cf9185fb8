package optim_test

import (
	"maps"
	"math"
	"slices"
)

// torchDefaults are PyTorch's options of each optimizer.
var torchDefaults = map[string]options{
	"SGD":     {},
	"Adam":    {"betas": []float64{0.9, 0.999}, "eps": 1e-8},
	"AdamW":   {"betas": []float64{0.9, 0.999}, "eps": 1e-8, "weight_decay": 0.01},
	"RMSprop": {"alpha": 0.99, "eps": 1e-8},
	"Muon":    {"weight_decay": 0.1, "momentum": 0.95, "nesterov": true},
}

// trainedBy is a parameter, its gradient, and what its optimizer keeps.
type trainedBy struct {
	rows                 int
	p, g                 []float64
	steps                int
	mean, square, buffer []float64
	most                 []float64 // of square, if amsgrad
}

// byTheRules computes where the parameters are after each step.
func (r *torchRun) byTheRules() (after [][][]float64) {
	params := make([]*trainedBy, len(r.Initial))
	for i, x := range r.Initial {
		zeros := func() []float64 { return make([]float64, len(x)) }
		params[i] = &trainedBy{rows: torchShapes[i][0], p: slices.Clone(x), mean: zeros(), square: zeros(), buffer: zeros(), most: zeros()}
	}
	for step := range r.Steps {
		for i, p := range params {
			if p.g = nil; (step+i)%7 != 6 {
				for k, x := range p.p {
					p.g = append(p.g, -math.Sin(x+float64(k+step))*r.Size)
				}
			}
		}
		r.clip(params)
		for _, o := range r.Optimizers {
			for _, group := range o.Groups {
				opts := maps.Clone(torchDefaults[o.Name])
				maps.Copy(opts, o.Options)
				maps.Copy(opts, group.Options)
				for _, i := range group.Params {
					if params[i].g != nil {
						params[i].step(o.Name, opts, r.Rates[step])
					}
				}
			}
		}
		var now [][]float64
		for _, p := range params {
			now = append(now, slices.Clone(p.p))
		}
		after = append(after, now)
	}
	return after
}

func (r *torchRun) clip(params []*trainedBy) {
	var sum, most float64
	for _, p := range params {
		for k, g := range p.g {
			if r.ClipValue != 0 {
				p.g[k] = min(max(g, -r.ClipValue), r.ClipValue)
			}
			sum, most = sum+math.Pow(math.Abs(g), r.Norm), max(most, math.Abs(g))
		}
	}
	norm := most
	if r.Norm != 0 {
		norm = math.Pow(sum, 1/r.Norm)
	}
	if r.Clip == 0 || r.Clip > norm {
		return
	}
	for _, p := range params {
		for k := range p.g {
			p.g[k] *= r.Clip / (norm + 1e-6)
		}
	}
}

func (p *trainedBy) step(optimizer string, opts options, rate float64) {
	number := func(name string) float64 { x, _ := opts[name].(float64); return x }
	is := func(name string) bool { x, _ := opts[name].(bool); return x }
	lr, decay, momentum := number("lr")*rate, number("weight_decay"), number("momentum")
	if optimizer == "Muon" {
		p.muon(lr, decay, momentum, is("nesterov"), is("match_rms"))
		return
	}
	p.steps++
	for k, g := range p.g {
		if optimizer == "AdamW" {
			p.p[k] *= 1 - lr*decay
		} else {
			g += decay * p.p[k]
		}
		switch optimizer {
		case "SGD":
			if p.buffer[k] = momentum*p.buffer[k] + g; is("nesterov") {
				g += momentum * p.buffer[k]
			} else {
				g = p.buffer[k]
			}
			p.p[k] -= lr * g
		case "RMSprop":
			alpha := number("alpha")
			p.square[k] = alpha*p.square[k] + (1-alpha)*g*g
			variance := p.square[k]
			if is("centered") {
				p.mean[k] = alpha*p.mean[k] + (1-alpha)*g
				variance -= p.mean[k] * p.mean[k]
			}
			p.buffer[k] = momentum*p.buffer[k] + g/(math.Sqrt(variance)+number("eps"))
			p.p[k] -= lr * p.buffer[k]
		default:
			betas := opts["betas"].([]float64)
			p.mean[k] = betas[0]*p.mean[k] + (1-betas[0])*g
			p.square[k] = betas[1]*p.square[k] + (1-betas[1])*g*g
			variance := p.square[k]
			if is("amsgrad") {
				p.most[k] = max(p.most[k], variance)
				variance = p.most[k]
			}
			unbiased := func(x, beta float64) float64 { return x / (1 - math.Pow(beta, float64(p.steps))) }
			p.p[k] -= lr * unbiased(p.mean[k], betas[0]) / (math.Sqrt(unbiased(variance, betas[1])) + number("eps"))
		}
	}
}

// product is the product of two matrices.
func product(x, y [][]float64) [][]float64 {
	out := make([][]float64, len(x))
	for i := range x {
		out[i] = make([]float64, len(y[0]))
		for k, v := range x[i] {
			for j := range out[i] {
				out[i][j] += v * y[k][j]
			}
		}
	}
	return out
}

func transposed(x [][]float64) [][]float64 {
	out := make([][]float64, len(x[0]))
	for _, row := range x {
		for j, v := range row {
			out[j] = append(out[j], v)
		}
	}
	return out
}

// muon is one step of Muon: it orthogonalizes the momentum by five Newton–Schulz iterations and subtracts the result.
func (p *trainedBy) muon(lr, decay, momentum float64, nesterov, matchRMS bool) {
	var x [][]float64
	var squares float64
	for k, g := range p.g {
		p.buffer[k] += (1 - momentum) * (g - p.buffer[k])
		u := p.buffer[k]
		if nesterov {
			u = g + momentum*(u-g)
		}
		if k%(len(p.g)/p.rows) == 0 {
			x = append(x, nil)
		}
		x[len(x)-1] = append(x[len(x)-1], u)
		squares += u * u
	}
	rows, columns := len(x), len(x[0])
	if rows > columns {
		x = transposed(x)
	}
	norm := max(math.Sqrt(squares), 1e-7)
	for _, row := range x {
		for j := range row {
			row[j] /= norm
		}
	}
	for range 5 {
		a := product(x, transposed(x))
		aa := product(a, a)
		for i := range a {
			for j := range a {
				a[i][j] = -4.7750*a[i][j] + 2.0315*aa[i][j]
			}
			a[i][i] += 3.4445
		}
		x = product(a, x)
	}
	if rows > columns {
		x = transposed(x)
	}
	scale := math.Sqrt(max(1, float64(rows)/float64(columns)))
	if matchRMS {
		scale = 0.2 * math.Sqrt(float64(max(rows, columns)))
	}
	for k := range p.p {
		p.p[k] = p.p[k]*(1-lr*decay) - lr*scale*x[k/columns][k%columns]
	}
}
