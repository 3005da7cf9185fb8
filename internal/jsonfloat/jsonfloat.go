// Package jsonfloat is encoding/json for values in which a float may be NaN or infinite. JSON has no numbers for these.
// Marshal writes the strings "NaN", "+Inf" and "-Inf", which strconv.ParseFloat and Python's float read, and Unmarshal
// reads them into floats. All other values are encoded as encoding/json does.
package jsonfloat

import (
	"encoding"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Marshal is json.Marshal, also for floats that are NaN or infinite. This does not hold within a type that encodes
// itself.
func Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if !errors.As(err, new(*json.UnsupportedValueError)) {
		return data, err
	}
	return encode(reflect.ValueOf(v), 0)
}

// Unmarshal is json.Unmarshal for what Marshal wrote. In a variable of interface type NaN is a string.
func Unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	var misfit *json.UnmarshalTypeError
	if !errors.As(err, &misfit) || misfit.Value != "string" || !isFloat(misfit.Type.Kind()) {
		return err
	}
	return decode(data, reflect.ValueOf(v).Elem())
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func isFloat(k reflect.Kind) bool { return k == reflect.Float32 || k == reflect.Float64 }

// deepest is how far encode descends. A value that is deeper has a cycle.
const deepest = 1000

func encode(v reflect.Value, depth int) ([]byte, error) {
	switch k := v.Kind(); {
	case !v.IsValid() || depth > deepest || encodes[json.Marshaler](v) || encodes[encoding.TextMarshaler](v):
	case isFloat(k) && !isFinite(v.Float()):
		return json.Marshal(strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case (k == reflect.Pointer || k == reflect.Interface || k == reflect.Map || k == reflect.Slice) && v.IsNil():
	case k == reflect.Pointer || k == reflect.Interface:
		return encode(v.Elem(), depth+1)
	case k == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 || k == reflect.Array:
		all := make([]json.RawMessage, v.Len())
		for i := range all {
			if err := encodeTo(&all[i], v.Index(i), depth); err != nil {
				return nil, err
			}
		}
		return json.Marshal(all)
	case k == reflect.Map:
		all := reflect.MakeMap(rawMap(v.Type()))
		for key, e := range v.Seq2() {
			var raw json.RawMessage
			if err := encodeTo(&raw, e, depth); err != nil {
				return nil, err
			}
			all.SetMapIndex(key, reflect.ValueOf(raw))
		}
		return json.Marshal(all.Interface())
	case k == reflect.Struct:
		all := map[string]json.RawMessage{}
		for name, f := range fields(v, true) {
			var raw json.RawMessage
			if err := encodeTo(&raw, f, depth); err != nil {
				return nil, err
			}
			all[name] = raw
		}
		return json.Marshal(all)
	}
	if !v.IsValid() {
		return []byte("null"), nil
	}
	return json.Marshal(v.Interface())
}

func encodeTo(raw *json.RawMessage, v reflect.Value, depth int) (err error) {
	*raw, err = encode(v, depth+1)
	return err
}

// decode sets v, which is addressable.
func decode(data []byte, v reflect.Value) error {
	switch k := v.Kind(); {
	case string(data) == "null" || encodes[json.Unmarshaler](v) || encodes[encoding.TextUnmarshaler](v):
	case isFloat(k):
		var s string
		if json.Unmarshal(data, &s) == nil && slices.Contains([]string{"NaN", "+Inf", "-Inf"}, s) {
			x, err := strconv.ParseFloat(s, 64)
			v.SetFloat(x)
			return err
		}
	case k == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return decode(data, v.Elem())
	case k == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 || k == reflect.Array:
		var all []json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
		if k == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), len(all), len(all)))
		}
		for i := range min(len(all), v.Len()) {
			if err := decode(all[i], v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	case k == reflect.Map:
		all := reflect.New(rawMap(v.Type()))
		if err := json.Unmarshal(data, all.Interface()); err != nil {
			return err
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for key, raw := range all.Elem().Seq2() {
			e := reflect.New(v.Type().Elem()).Elem()
			if err := decode(raw.Bytes(), e); err != nil {
				return err
			}
			v.SetMapIndex(key, e)
		}
		return nil
	case k == reflect.Struct:
		all := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
		for name, f := range fields(v, false) {
			if raw, ok := all[name]; ok {
				if err := decode(raw, f); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return json.Unmarshal(data, v.Addr().Interface())
}

// encodes reports whether package json would call v's methods of the interface M to encode or decode v.
func encodes[M any](v reflect.Value) bool {
	t := reflect.TypeFor[M]()
	return v.Type().Implements(t) || v.CanAddr() && reflect.PointerTo(v.Type()).Implements(t)
}

func rawMap(t reflect.Type) reflect.Type {
	return reflect.MapOf(t.Key(), reflect.TypeFor[json.RawMessage]())
}

// fields returns the fields of a struct by their names in JSON. If omits is true, it leaves out the fields that JSON
// omits. The fields of an embedded struct count as the struct's own.
func fields(v reflect.Value, omits bool) map[string]reflect.Value {
	all := map[string]reflect.Value{}
	var embedded []map[string]reflect.Value
	for i := range v.NumField() {
		f, t := v.Field(i), v.Type().Field(i)
		name, options, _ := strings.Cut(t.Tag.Get("json"), ",")
		switch {
		case t.Anonymous && name == "" && f.Kind() == reflect.Struct:
			embedded = append(embedded, fields(f, omits))
		case !t.IsExported() || name == "-":
		case omits && strings.Contains(options, "omit") && f.IsZero():
		case name == "":
			all[t.Name] = f
		default:
			all[name] = f
		}
	}
	for _, e := range embedded {
		for name, f := range e {
			if _, hidden := all[name]; !hidden {
				all[name] = f
			}
		}
	}
	return all
}
