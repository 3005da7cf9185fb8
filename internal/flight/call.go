package flight

import (
	"encoding/json"
	"fmt"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// Call identifies a call. In JSON, its kind, reduction and element type are written as names.
type Call struct{ backend.Fingerprint }

type callJSON struct {
	Seq   uint64 `json:"seq"`
	Kind  string `json:"kind"`
	Op    string `json:"op,omitzero"`
	DType string `json:"dtype,omitzero"`
	Count int    `json:"count"`
	Root  *int   `json:"root,omitempty"` // the root, or the peer of Send and Recv; only of kinds that have one
}

// MarshalJSON writes names instead of numbers.
func (c Call) MarshalJSON() ([]byte, error) {
	j := callJSON{Seq: c.Seq, Kind: c.Kind.String(), Count: c.Count}
	if c.Kind.Reduces() {
		j.Op = c.Op.String()
	}
	if c.DType != device.Invalid {
		j.DType = c.DType.String()
	}
	if c.Kind.Rooted() {
		j.Root = &c.Root
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (c *Call) UnmarshalJSON(data []byte) (err error) {
	var j callJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	c.Seq, c.Count = j.Seq, j.Count
	if c.Kind, err = named[backend.Kind](j.Kind); err != nil {
		return err
	}
	if j.Op != "" {
		if c.Op, err = named[backend.ReduceOp](j.Op); err != nil {
			return err
		}
	}
	if j.DType != "" {
		if c.DType, err = named[device.DType](j.DType); err != nil {
			return err
		}
	}
	if j.Root != nil {
		c.Root = *j.Root
	}
	return nil
}

// State is the state of a call.
type State struct{ backend.State }

// MarshalText returns the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the state from its name.
func (s *State) UnmarshalText(text []byte) (err error) {
	for s.State = backend.Queued; s.State <= backend.Failed; s.State++ {
		if s.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("%q is not a call state", text)
}

// named returns the value of type T whose String method returns name.
func named[T interface {
	~uint8
	fmt.Stringer
}](name string) (T, error) {
	for n := range 256 {
		if T(n).String() == name {
			return T(n), nil
		}
	}
	return 0, fmt.Errorf("%q is not a %T", name, T(0))
}
