package page

import (
	"math"
	"strconv"
)

// value is a float64 whose JSON is null if it is not finite, and has six digits.
type value float64

var nan = float32(math.NaN())

// MarshalJSON implements json.Marshaler.
func (n value) MarshalJSON() ([]byte, error) { return n.appendJSON(nil), nil }

func (n value) appendJSON(b []byte) []byte {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, float64(n), 'g', 6, 64)
}

// values are marshalled at once, because one by one takes twice as long.
type values []value

// MarshalJSON implements json.Marshaler.
func (all values) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, n := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = n.appendJSON(b)
	}
	return append(b, ']'), nil
}
