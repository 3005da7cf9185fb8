package decoder

import (
	"cmp"
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// Scaling says how the angles of rotary positions are scaled for longer texts than a model was first trained on.
type Scaling uint8

// The scalings.
const (
	NoScaling     Scaling = iota
	LinearScaling         // all angles are divided by Factor
	Llama3Scaling         // slow rotations are divided by Factor, fast ones are unchanged (Llama 3.1)
	YarnScaling           // the same, with a ramp over the pairs, and a factor of queries and keys (Peng et al., "YaRN", 2023)
)

// Rope describes rotary positions (Su et al., "RoFormer", 2021). Element i of the first half of a head is paired with
// element i of the second half. Its JSON has the keys of Hugging Face's rope_parameters.
type Rope struct {
	Theta    float64 `json:"rope_theta"`            // the base of the angles; 0 means 10000
	Fraction float64 `json:"partial_rotary_factor"` // the part of a head that is rotated; 0 means 1

	Scaling      Scaling `json:"-"`
	Factor       float64 `json:"factor"`
	FirstTrained int     `json:"original_max_position_embeddings"` // the positions of the first training; 0 means the model's maximum

	// Llama3Scaling: pairs that rotate fewer than LowFrequency times over FirstTrained are slow, and those that rotate more
	// than HighFrequency times are fast.
	LowFrequency  float64 `json:"low_freq_factor"`
	HighFrequency float64 `json:"high_freq_factor"`

	// YarnScaling
	BetaFast   float64 `json:"beta_fast"`        // as HighFrequency; 0 means 32
	BetaSlow   float64 `json:"beta_slow"`        // as LowFrequency; 0 means 1
	Attention  float64 `json:"attention_factor"` // the factor of queries and keys; 0 means 0.1·ln(Factor) + 1
	NoTruncate bool    `json:"-"`                // the ends of the ramp may lie between pairs
}

// rope computes the cosines and sines of positions.
type rope struct {
	frequencies []float32 // the angle of each pair at position 1
	factor      float32
	most        int // the maximum number of positions
	table       table
}

// table holds the cosines and sines of the first rows positions.
type table struct {
	rows     int
	cos, sin *autograd.Variable
}

// Frequencies returns the angle at position 1 of each pair of a head of size elements, and the factor of its cosine and
// sine. It computes in Float32, as PyTorch's models do: at large positions a rounding of a frequency is a visible part
// of an angle. With a scaling, FirstTrained must not be 0. It returns an error if the scaling lacks another number.
func (r Rope) Frequencies(size int) (f []float32, scale float32, err error) {
	theta, dim := cmp.Or(r.Theta, 10000), int(float64(size)*cmp.Or(r.Fraction, 1))
	for i := range dim / 2 {
		power := float32(math.Pow(float64(float32(theta)), float64(float32(2*i)/float32(dim))))
		f = append(f, 1/power)
	}
	scale = 1
	first, factor := float64(r.FirstTrained), float32(r.Factor)
	if r.Scaling != NoScaling && !(r.Factor > 0) {
		return nil, 0, fmt.Errorf("decoder: rotary positions scaled by %v, want a positive Factor", r.Factor)
	}
	switch r.Scaling {
	case NoScaling:
	case LinearScaling:
		for i := range f {
			f[i] /= factor
		}
	case Llama3Scaling:
		low, high := float32(r.LowFrequency), float32(r.HighFrequency)
		if !(low > 0 && high > low) {
			return nil, 0, fmt.Errorf("decoder: LowFrequency %v and HighFrequency %v, want 0 < LowFrequency < HighFrequency", low, high)
		}
		for i, v := range f {
			wave := float32(2*math.Pi) / v
			switch turns := float32(first) / wave; {
			case turns > high:
			case turns < low:
				f[i] = v / factor
			default:
				smooth := (turns - low) / (high - low)
				f[i] = (1-smooth)*v/factor + smooth*v
			}
		}
	case YarnScaling:
		scale = float32(cmp.Or(r.Attention, max(0.1*math.Log(r.Factor)+1, 1)))
		pair := func(turns float64) float64 { // the pair that rotates so many times over the first positions
			return float64(dim) * math.Log(first/(turns*2*math.Pi)) / (2 * math.Log(theta))
		}
		low, high := pair(cmp.Or(r.BetaFast, 32)), pair(cmp.Or(r.BetaSlow, 1))
		if !r.NoTruncate {
			low, high = math.Floor(low), math.Ceil(high)
		}
		low, high = max(low, 0), min(high, float64(dim-1))
		if low == high {
			high += 0.001
		}
		for i, v := range f {
			fast := 1 - min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
			f[i] = 1/(factor*(1/v))*(1-fast) + v*fast
		}
	default:
		return nil, 0, fmt.Errorf("decoder: scaling %d of rotary positions, want a constant of the type Scaling", r.Scaling)
	}
	return f, scale, nil
}

func (r *rope) newTable(dev device.Device, rows int) table {
	n := rows * len(r.frequencies)
	cos, sin := make([]float32, 0, n), make([]float32, 0, n)
	for t := range rows {
		for _, f := range r.frequencies {
			y, x := math.Sincos(float64(float32(t) * f))
			cos, sin = append(cos, float32(x)*r.factor), append(sin, float32(y)*r.factor)
		}
	}
	return table{rows, autograd.FromSlice(dev, cos, rows, len(r.frequencies)), autograd.FromSlice(dev, sin, rows, len(r.frequencies))}
}

// angles returns the cosines and sines [rows pairs] for the first rows positions, or [b·t pairs] for o.Positions [b t].
func (r *rope) angles(dev device.Device, dt device.DType, rows int, o *ForwardOptions) (cos, sin *autograd.Variable) {
	if o.Positions != nil {
		rows = cmp.Or(o.most, r.most)
	}
	if r.table.cos == nil || r.table.rows < rows || r.table.cos.Device() != dev {
		r.table = r.newTable(dev, max(rows, min(2*r.table.rows, r.most))) // so that a text that grows takes few tables
	}
	cos, sin = r.table.cos, r.table.sin
	if o.Positions != nil {
		at := autograd.Flatten(o.Positions, 0)
		cos, sin = autograd.Embedding(cos, at, -1), autograd.Embedding(sin, at, -1)
	}
	if dt == device.Float64 {
		cos, sin = autograd.Cast(cos, dt), autograd.Cast(sin, dt)
	}
	return cos, sin
}
