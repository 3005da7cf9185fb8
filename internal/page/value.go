package page

import (
	"math"
	"strconv"
)

// value is a float64 whose JSON is null if it is not finite, and has six digits.
type value float64

var nan = float32(math.NaN())

// MarshalJSON implements json.Marshaler.
func (n value) MarshalJSON() ([]byte, error) {
	if v := float64(n); math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 6, 64), nil
}
