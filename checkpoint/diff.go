package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// A Difference is a tensor or a value in which two checkpoints differ.
type Difference struct {
	Name string // such as "model/0.weight", or "value/position"
	Text string // what differs
}

// Diff compares the tensors, the optimizers' steps and the values of two checkpoints. If a path is
// a folder of checkpoints, Diff takes the latest one. Diff ignores how the tensors are divided
// among files. It returns nothing if the checkpoints are equal to the bit.
func Diff(a, b string) ([]Difference, error) {
	var r [2]*reader
	for i, path := range []string{a, b} {
		path, err := Latest(path)
		if err != nil {
			return nil, err
		}
		if r[i], err = openReader(disk{}, path); err != nil {
			return nil, err
		}
		defer r[i].close()
	}
	var all []Difference
	add := func(name, format string, args ...any) {
		all = append(all, Difference{name, fmt.Sprintf(format, args...)})
	}
	x, y := r[0].manifest, r[1].manifest
	if x.Step != y.Step {
		add("step", "%d and %d", x.Step, y.Step)
	}
	if !slices.Equal(x.Optimizers, y.Optimizers) {
		add("optimizers", "%d and %d steps committed", x.Optimizers, y.Optimizers)
	}
	values := map[string]json.RawMessage{}
	maps.Copy(values, x.Values)
	maps.Copy(values, y.Values)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !bytes.Equal(x.Values[name], y.Values[name]) {
			add("value/"+name, "%s and %s", orNone(string(x.Values[name])), orNone(string(y.Values[name])))
		}
	}
	tensors := [2]map[string]*Tensor{}
	names := map[string]bool{}
	for i, m := range []*Manifest{x, y} {
		tensors[i] = map[string]*Tensor{}
		for k := range m.Tensors {
			t := &m.Tensors[k]
			tensors[i][key(t.Kind, t.Name)] = t
			names[key(t.Kind, t.Name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s, t := tensors[0][name], tensors[1][name]
		if s == nil || t == nil || s.DType != t.DType || !slices.Equal(s.Shape, t.Shape) {
			add(name, "%s and %s", describe(s), describe(t))
			continue
		}
		p, err := r[0].elements(s, 0, s.len())
		if err != nil {
			return nil, err
		}
		q, err := r[1].elements(t, 0, t.len())
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(p, q) {
			add(name, "%s", difference(s, p, q))
		}
	}
	return all, nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func describe(t *Tensor) string {
	if t == nil {
		return "none"
	}
	return t.layout()
}

// difference describes how the elements of two tensors of the same type and shape differ.
func difference(t *Tensor, a, b []byte) string {
	width, dt := int(t.size(1)), t.DType.Device()
	if t.len() == 1 && dt == device.Int64 {
		return fmt.Sprintf("%d and %d", int64(binary.LittleEndian.Uint64(a)), int64(binary.LittleEndian.Uint64(b)))
	}
	if dt == device.Invalid { // an element may be smaller than a byte
		return "the elements differ"
	}
	count, most := 0, 0.0
	for i := 0; i < len(a); i += width {
		x, y := a[i:i+width], b[i:i+width]
		if bytes.Equal(x, y) {
			continue
		}
		count++
		if dt.IsFloat() {
			most = math.Max(most, math.Abs(number(dt, x)-number(dt, y))) // the result is NaN if an operand is
		}
	}
	text := fmt.Sprintf("%d of %d elements differ", count, t.len())
	if dt.IsFloat() {
		text += fmt.Sprintf(", by at most %.3g", most)
	}
	return text
}

// number returns one element of a floating-point type.
func number(dt device.DType, b []byte) float64 {
	switch le := binary.LittleEndian; dt {
	case device.Float16:
		return float64(kernels.FromF16(le.Uint16(b)))
	case device.BFloat16:
		return float64(kernels.FromBF16(le.Uint16(b)))
	case device.Float32:
		return float64(math.Float32frombits(le.Uint32(b)))
	default:
		return math.Float64frombits(le.Uint64(b))
	}
}
