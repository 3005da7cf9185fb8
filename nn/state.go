package nn

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
)

// State returns m's parameters and buffers by name: its state dict. The values are the variables themselves,
// not copies. A model wrapped by package ddp has the names of the inner module, without a prefix, so a state
// of the wrapped model loads into the inner module, and vice versa. The parameters of a base model are left out: see
// [FreezeBase]. State panics with a [*DuplicateNameError] if two variables have the same name.
func State(m Model) map[string]*autograd.Variable {
	state := map[string]*autograd.Variable{}
	add := func(name string, v *autograd.Variable) {
		if other, taken := state[name]; taken && other != v {
			panic(&DuplicateNameError{name})
		}
		state[name] = v
	}
	for _, p := range m.Parameters() {
		if !p.isBase {
			add(p.Name(), p.Var())
		}
	}
	for _, b := range Buffers(m) {
		add(b.Name(), b.Var())
	}
	return state
}

// AllNames returns the variables of [State] under all their names. A parameter or buffer that several parts
// of m share has only its first name in State, but one name per part in PyTorch's state dict.
func AllNames(m Model) map[string]*autograd.Variable {
	all := State(m)
	known := map[*autograd.Variable]bool{}
	for _, v := range all {
		known[v] = true
	}
	visitNames(m, "", func(name string, v *value) {
		if _, taken := all[name]; !taken && known[v.v] {
			all[name] = v.v
		}
	})
	return all
}

// visitNames calls visit for each name of a parameter or buffer within m.
func visitNames(m Model, prefix string, visit func(name string, v *value)) {
	switch m := m.(type) {
	case interface{ Unwrap() Model }: // a *ddp.Model
		visitNames(m.Unwrap(), prefix, visit)
	case interface{ wrapped() Module }:
		visitNames(m.wrapped(), prefix, visit)
	case interface{ container() *Container }:
		for _, p := range m.container().parts {
			visitNames(p.model, prefix+p.prefix, visit)
		}
	default:
		for _, p := range m.Parameters() {
			visit(prefix+p.name, p.value)
		}
		for _, b := range Buffers(m) {
			visit(prefix+b.name, b.value)
		}
	}
}

// LoadState sets m's parameters and buffers, which must be placed, to the values in state, which may be on
// another device. It converts floating-point numbers to the types in m. If names or shapes differ, it
// returns a [*StateError] and changes nothing. Any other error comes from a device; m is then partly loaded.
func LoadState(ctx context.Context, m Model, state map[string]*autograd.Variable) error {
	if err := CheckState(m, state); err != nil {
		return err
	}
	for name, v := range State(m) {
		if err := load(ctx, v, state[name]); err != nil {
			return fmt.Errorf("nn: loading %s: %w", name, err)
		}
	}
	return nil
}

// CheckState returns a [*StateError] unless state matches m. LoadState calls it first.
func CheckState(m Model, state map[string]*autograd.Variable) error {
	mine, e := State(m), &StateError{}
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		v, there := state[name]
		if !there {
			e.Missing = append(e.Missing, name)
			continue
		}
		dt, want := v.DType(), mine[name].DType()
		if !v.Shape().Equal(mine[name].Shape()) || dt != want && !(dt.IsFloat() && want.IsFloat()) {
			e.Mismatched = append(e.Mismatched, StateMismatch{name, describe(v), describe(mine[name])})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if _, known := mine[name]; !known {
			e.Unexpected = append(e.Unexpected, name)
		}
	}
	if len(e.Missing)+len(e.Unexpected)+len(e.Mismatched) > 0 {
		return e
	}
	return nil
}

func describe(v *autograd.Variable) string { return fmt.Sprintf("%v%v", v.DType(), v.Shape()) }

// load copies src to dst.
func load(ctx context.Context, dst, src *autograd.Variable) error {
	if err := src.Err(); err != nil || dst == src {
		return err
	}
	defer runtime.KeepAlive(src)
	dev, t := dst.Device(), src.Tensor()
	if from := src.Device(); from != dev {
		host := make([]byte, t.Bytes())
		if err := from.CopyOut(ctx, from.Compute(), host, t.Buf); err != nil {
			return err
		}
		buf, err := dev.Alloc(len(host))
		if err != nil {
			return err
		}
		defer dev.Free(buf)
		if err := dev.CopyIn(dev.Compute(), buf, host); err != nil {
			return err
		}
		t = device.NewTensor(buf, t.DType, t.Shape...)
	}
	dst.BumpVersion()
	return dev.Kernels().Copy(dev.Compute(), dst.Tensor(), t)
}

// StateError lists all differences between a state and a module. Its message names the first of each kind,
// and the number of the others.
type StateError struct {
	Missing    []string // names only in the module
	Unexpected []string // names only in the state
	Mismatched []StateMismatch
}

// StateMismatch is a variable whose shape or kind of numbers differs.
type StateMismatch struct {
	Name          string
	State, Module string // type and shape in the state and in the module: "float32[4 3]"
}

func (e *StateError) Error() string {
	const most = 3 // the maximum number of differences of each kind in the message
	var parts []string
	list := func(intro string, names []string) {
		if len(names) > most {
			intro, names = fmt.Sprintf("%s %d tensors, the first of them", intro, len(names)), names[:most]
		}
		if len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %q", intro, names))
		}
	}
	list("it lacks", e.Missing)
	list("the module has no", e.Unexpected)
	for i, m := range e.Mismatched {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more differ", len(e.Mismatched)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%q is %s in the state and %s in the module", m.Name, m.State, m.Module))
	}
	return "nn: the state does not fit the module: " + strings.Join(parts, "; ")
}

// DuplicateNameError is the panic value of a module with two parameters or buffers of the same name.
type DuplicateNameError struct{ Name string }

func (e *DuplicateNameError) Error() string {
	return fmt.Sprintf("nn: two parameters or buffers of one module are called %q", e.Name)
}
