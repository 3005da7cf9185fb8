package jsonfloat

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"
)

type inner struct {
	Best float32 `json:"best"`
}

type record struct {
	inner
	Name string
	Loss float64
	All  []float64            `json:"all,omitempty"`
	By   map[int]*float64     `json:"by,omitempty"`
	Deep map[string][]float32 `json:",omitempty"`
	Pair [2]float64
	Raw  []byte
	Time time.Time
	Any  any
}

// same is reflect.DeepEqual, except that NaN equals NaN.
func same(a, b any) bool {
	x, errX := Marshal(a)
	y, errY := Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y) && reflect.TypeOf(a) == reflect.TypeOf(b)
}

// Every float survives a round trip, wherever it is. What encoding/json can encode has its encoding.
func TestRoundTrip(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, v := range []any{
		1.5, nan, inf, -inf, math.Copysign(0, -1), 5e-324, math.MaxFloat64, 0.1, float32(0.1), float32(inf),
		[]float64{1, nan, -inf}, []float64(nil), [3]float32{0: float32(nan)}, map[string]float64{"a": inf, "b": 1}, [][]float64{{nan}, nil},
		record{inner: inner{float32(nan)}, Name: "NaN", Loss: inf, All: []float64{1, nan}, By: map[int]*float64{3: &nan}, Deep: map[string][]float32{"x": {float32(inf)}}, Pair: [2]float64{nan, 2}, Raw: []byte("ab"), Time: time.Unix(9, 0).UTC(), Any: "x"},
		&record{Loss: 2}, time.Second, "NaN", []string{"+Inf"},
	} {
		data, err := Marshal(v)
		if err != nil || !json.Valid(data) {
			t.Errorf("%v: %s, %v", v, data, err)
			continue
		}
		if plain, err := json.Marshal(v); err == nil && string(plain) != string(data) {
			t.Errorf("%v: %s, as encoding/json encodes it: %s", v, data, plain)
		}
		to := reflect.New(reflect.TypeOf(v))
		if err := Unmarshal(data, to.Interface()); err != nil || !same(to.Elem().Interface(), v) {
			t.Errorf("%v: %s becomes %v, %v", v, data, to.Elem(), err)
		}
	}
}

// itself encodes itself, with a float that package json does not encode.
type itself struct{}

func (itself) MarshalJSON() ([]byte, error) { return json.Marshal(math.NaN()) }

func TestErrors(t *testing.T) {
	type loop struct {
		Next *loop
		X    float64
	}
	cycle := &loop{X: math.NaN()}
	cycle.Next = cycle
	for _, v := range []any{itself{}, cycle, make(chan int), []any{math.NaN(), func() {}}} {
		if data, err := Marshal(v); err == nil {
			t.Errorf("%T: %s, want an error", v, data)
		}
	}
	var x float64
	for _, text := range []string{`"nan"`, `"1"`, `"Inf"`, `{}`} {
		if err := Unmarshal([]byte(text), &x); err == nil {
			t.Errorf("%s becomes %v, want an error", text, x)
		}
	}
}
