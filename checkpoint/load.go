package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Resume sets the state to that of the latest checkpoint and returns its step. If there is no checkpoint,
// Resume returns 0 and changes nothing. Any number of ranks may have saved the checkpoint. If it is
// corrupt, Resume logs the problems and takes the checkpoint before it. Resume also logs a warning if the
// checkpoint is not finite ([Manifest.NonFinite]), and lists the contents that are not loaded. All ranks call Resume.
//
// The error is an [*nn.StateError] if the checkpoint does not fit the state, and a [*VersionError]
// if its format is newer. After one of these, or if all checkpoints are corrupt, the state is
// unchanged. After another error the state is inconsistent.
func (m *Manager) Resume(ctx context.Context, state State) (step int, err error) {
	if m.closed {
		return 0, ErrClosed
	}
	if err := m.Wait(ctx); err != nil {
		return 0, err
	}
	if step, err = m.resume(ctx, state); err != nil {
		return 0, fmt.Errorf("checkpoint: resuming from %s: %w", m.dir, err)
	}
	return step, nil
}

func (m *Manager) resume(ctx context.Context, state State) (int, error) {
	var names []string
	var err error
	if m.pg.Rank() == 0 {
		var all []Info
		if all, err = candidates(m.dir); err == nil {
			for _, info := range all {
				names = append(names, filepath.Base(info.Path))
			}
		}
	}
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return 0, err
	}
	if err := comm.BroadcastObject(ctx, m.pg, &names, 0); err != nil {
		return 0, err
	}
	var failed []string
	for i, name := range names {
		step, problems, err := m.load(ctx, filepath.Join(m.dir, name), state)
		if err != nil || problems == "" {
			return step, err
		}
		failed = append(failed, problems)
		if m.pg.Rank() == 0 && i+1 < len(names) {
			m.pg.Log().Warn("a checkpoint is corrupt, the one before it is loaded", "corrupt", problems, "before", names[i+1])
		}
	}
	if failed != nil {
		return 0, errors.New(strings.Join(failed, "; "))
	}
	return 0, nil
}

// Load sets the state to that of the checkpoint of a step, as [Manager.Resume] does. It returns an
// error if there is no such checkpoint, or if it is corrupt.
func (m *Manager) Load(ctx context.Context, step int, state State) error {
	if m.closed {
		return ErrClosed
	}
	if err := m.Wait(ctx); err != nil {
		return err
	}
	if err := m.loadStep(ctx, step, state); err != nil {
		return fmt.Errorf("checkpoint: loading step %d from %s: %w", step, m.dir, err)
	}
	return nil
}

func (m *Manager) loadStep(ctx context.Context, step int, state State) error {
	var name string
	var err error
	if m.pg.Rank() == 0 {
		var all []Info
		if all, err = List(m.dir); err == nil {
			i := slices.IndexFunc(all, func(i Info) bool { return i.Step == step })
			if i < 0 {
				err = errors.New("there is no such checkpoint")
			} else {
				name = filepath.Base(all[i].Path)
			}
		}
	}
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return err
	}
	if err := comm.BroadcastObject(ctx, m.pg, &name, 0); err != nil {
		return err
	}
	_, problems, err := m.load(ctx, filepath.Join(m.dir, name), state)
	if err == nil && problems != "" {
		err = errors.New(problems)
	}
	return err
}

// load loads one checkpoint. If the checkpoint is corrupt, problems describes how, the state is unchanged, and all
// ranks return the same text.
func (m *Manager) load(ctx context.Context, path string, state State) (step int, problems string, err error) {
	r, err := openReader(m.fs, path)
	if err == nil {
		defer r.close()
		err = r.verify(m.pg.Rank(), m.pg.Size())
	}
	var c *CorruptError
	if errors.As(err, &c) {
		problems, err = c.Error(), nil
	}
	all, gathered := comm.AllGatherObject(ctx, m.pg, problems)
	if gathered != nil {
		return 0, "", errors.Join(err, gathered)
	}
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return 0, "", err
	}
	all = slices.DeleteFunc(all, func(p string) bool { return p == "" })
	if len(all) > 0 {
		slices.Sort(all)
		return 0, strings.Join(slices.Compact(all), "; "), nil
	}
	if m.pg.Rank() == 0 {
		m.warn(r, state)
	}
	if r.manifest.WeightsOnly {
		state = State{Model: state.Model}
	}
	targets, err := r.targets(state, m.pg.Rank(), m.pg.Size())
	if err := comm.Agree(ctx, m.pg, err); err != nil {
		return 0, "", err
	}
	if foreign := r.manifest.foreign(); foreign != nil && m.pg.Rank() == 0 {
		m.pg.Log().Warn("tensors of types that devices do not have are not loaded", "checkpoint", path, "tensors", foreign)
	}
	return r.manifest.Step, "", comm.Agree(ctx, m.pg, m.set(ctx, r, state, targets))
}

// warn logs what may be unexpected about a checkpoint that a program loads.
func (m *Manager) warn(r *reader, state State) {
	if r.manifest.NonFinite != "" {
		m.pg.Log().Warn("the checkpoint that is loaded has a NaN or an Inf", "checkpoint", r.path, "tensor", r.manifest.NonFinite)
	}
	ignored := lacking(r.manifest.Values, state.Values)
	saved, ranks := r.manifest.WorldSize, m.pg.Size()
	if saved == ranks {
		ignored = append(ignored, lacking(r.manifest.RankValues[0], state.RankValues)...)
	} else {
		ignored = append(ignored, lacking(r.manifest.RankValues[0], state.Values)...)
	}
	if r.manifest.Hooks && (state.Hook == nil || saved != ranks) {
		ignored = append(ignored, "the state of the hook")
	}
	if ignored != nil {
		m.pg.Log().Warn("the checkpoint has more than is loaded", "checkpoint", r.path, "ignored", ignored, "saved_ranks", saved, "ranks", ranks)
	}
	if state.Hook != nil && !r.manifest.Hooks {
		m.pg.Log().Warn("the communication hook starts from its initial state, because the checkpoint has no hook state", "checkpoint", r.path)
	}
}

// target is a tensor of the state, with the saved tensor that it is set to.
type target struct {
	item
	from *Tensor
}

// targets pairs the tensors of the state with those of the checkpoint. The error lists the tensors that do
// not fit. Tensors of types that devices do not support cannot be part of the state and are skipped.
func (r *reader) targets(state State, rank, size int) ([]target, error) {
	if got, want := len(r.manifest.Optimizers), len(state.Optimizers); got != want && !r.manifest.WeightsOnly {
		return nil, fmt.Errorf("%s has the state of %d optimizers, but the program has %d optimizers", r.path, got, want)
	}
	items, err := state.items()
	if err != nil {
		return nil, err
	}
	saved := map[string]*Tensor{}
	for i := range r.manifest.Tensors {
		if t := &r.manifest.Tensors[i]; !strings.HasPrefix(t.Kind, "hook") && (state.Model != nil || t.Kind != modelKind) {
			saved[key(t.Kind, t.Name)] = t
		}
	}
	if state.Model != nil {
		if err := r.untie(saved, state.Model); err != nil {
			return nil, err
		}
	}
	e := &nn.StateError{}
	var all []target
	for _, it := range items {
		k := key(it.kind, it.name)
		t := saved[k]
		if t == nil {
			e.Missing = append(e.Missing, k)
			continue
		}
		delete(saved, k)
		dt, want := t.DType.Device(), it.v.DType()
		if !it.Whole.Equal(t.Shape) || dt != want && !(dt.IsFloat() && want.IsFloat()) {
			e.Mismatched = append(e.Mismatched, nn.StateMismatch{Name: k, State: t.layout(), Module: fmt.Sprint(want, it.Whole)})
		}
		all = append(all, target{it, t})
	}
	maps.DeleteFunc(saved, func(_ string, t *Tensor) bool { return t.DType.Device() == device.Invalid })
	e.Unexpected = slices.Sorted(maps.Keys(saved))
	if len(e.Missing)+len(e.Unexpected)+len(e.Mismatched) > 0 {
		return nil, fmt.Errorf("%s was saved from another model or other optimizers: %w", r.path, e)
	}
	names := lacking(state.Values, r.manifest.Values)
	if r.manifest.WorldSize == size {
		names = append(names, slices.DeleteFunc(lacking(state.RankValues, r.manifest.RankValues[rank]), func(name string) bool { return state.Values[name] != nil })...)
	}
	if names != nil {
		return nil, fmt.Errorf("%s lacks the values %q", r.path, names)
	}
	return all, nil
}

// untie renames the tied weights in saved to their names in [nn.State]. The file may have them under any of their
// names.
func (r *reader) untie(saved map[string]*Tensor, m nn.Model) error {
	w := r.weights()
	names, _ := w.namesOf(m)
	for _, there := range names {
		if len(there) > 1 {
			if _, err := w.readTied(there); err != nil {
				return err
			}
		}
		for _, name := range there {
			delete(saved, key(modelKind, name))
		}
	}
	for name, v := range nn.State(m) {
		if there := names[v]; there != nil {
			saved[key(modelKind, name)] = w.tensors[there[0]]
		}
	}
	return nil
}

// set loads the checkpoint into the state.
func (m *Manager) set(ctx context.Context, r *reader, state State, targets []target) error {
	for _, opt := range state.Optimizers {
		opt.BeginLoad()
	}
	for _, t := range targets {
		data, err := r.elements(t.from, t.Lo, t.Hi)
		if err == nil {
			err = setVariable(t.v, data, t.from.DType.Device())
		}
		if err != nil {
			return fmt.Errorf("%v: %w", t.from, err)
		}
	}
	for i, opt := range state.Optimizers {
		opt.EndLoad(r.manifest.Optimizers[i])
	}
	if err := decodeValues(state.Values, r.manifest.Values); err != nil {
		return err
	}
	if r.manifest.WorldSize != m.pg.Size() {
		return nil
	}
	own, saved := maps.Clone(state.RankValues), r.manifest.RankValues[m.pg.Rank()]
	for _, name := range lacking(own, saved) { // Values has it
		delete(own, name)
	}
	if err := decodeValues(own, saved); err != nil {
		return err
	}
	if state.Hook == nil || !r.manifest.Hooks {
		return nil
	}
	hook := map[string]device.Tensor{}
	for name, t := range r.manifest.tensors(hookKind(m.pg.Rank())) {
		data, err := r.elements(t, 0, t.len())
		if err != nil {
			return err
		}
		hook[name] = device.NewTensor(device.HostBuffer(data, nil), t.DType.Device(), t.Shape...)
	}
	return state.Hook.LoadState(hook)
}

// setVariable sets a variable to the elements in data, whose floating-point type dt may differ from the
// variable's type.
func setVariable(v *autograd.Variable, data []byte, dt device.DType) error {
	dev, to := v.Device(), v.Tensor()
	v.BumpVersion()
	if to.Len() == 0 {
		return nil
	}
	if to.DType == dt {
		return dev.CopyIn(dev.Compute(), to.Buf, data)
	}
	buf, err := dev.Alloc(len(data))
	if err != nil {
		return err
	}
	defer dev.Free(buf) // Free takes effect after the copies on the stream
	if err := dev.CopyIn(dev.Compute(), buf, data); err != nil {
		return err
	}
	return dev.Kernels().Copy(dev.Compute(), to.Flat(), device.NewTensor(buf, dt, to.Len()))
}
