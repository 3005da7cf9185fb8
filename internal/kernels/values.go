package kernels

import (
	"maps"
	"slices"
	"sync"
)

// Values keeps per-device state of other packages, such as autograd's scopes, so that they need no
// package-level state. A package uses a key of an unexported type, as with context.Context. The zero
// Values is ready to use.
type Values struct {
	mu sync.Mutex
	m  map[any]any
}

// Close calls the method Close() of each value that has one. A device calls it when it closes, while its
// libraries are still open.
func (v *Values) Close() {
	v.mu.Lock()
	all := slices.Collect(maps.Values(v.m))
	v.mu.Unlock()
	for _, x := range all {
		if c, ok := x.(interface{ Close() }); ok {
			c.Close()
		}
	}
}

// Get returns the value for key. If there is none yet, Get creates it with init.
func (v *Values) Get(key any, init func() any) any {
	v.mu.Lock()
	defer v.mu.Unlock()
	if x, ok := v.m[key]; ok {
		return x
	}
	if v.m == nil {
		v.m = map[any]any{}
	}
	x := init()
	v.m[key] = x
	return x
}
