package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/telemetry"
)

// saving is one Save on one rank, from its snapshot until the write has ended.
type saving struct {
	seq, step int
	started   time.Time
	pieces    []piece      // the pieces of the snapshot, in page-locked memory
	copied    device.Event // the event after which the pieces are copied; nil if nothing was enqueued
	share     share
	cancel    func()        // ends the waits of the writer
	done      chan struct{} // the writer closes it when it no longer uses any field
	err       error         // the writer's error; valid once done is closed
}

// share is a rank's report to rank 0 about its file.
type share struct {
	Step       int
	Layout     uint64                     // a hash of the state's names, types and shapes, which must be the same on all ranks
	Optimizers []int                      // the number of steps that each optimizer has committed
	Values     map[string]json.RawMessage // only rank 0's
	RankValues map[string]json.RawMessage
	Hook       bool
	File       File
	Tensors    []Tensor // this rank's parts of tensors; rank 0 sets Part.File
	NonFinite  string   // see Manifest.NonFinite
	Best       bool     // see State.Best
	Err        string   // why the share is not durable; "" if it is
}

// outcome is rank 0's report to the other ranks about a save.
type outcome struct {
	Err  string // "" if the checkpoint is complete
	Name string // the name of its folder
}

// Save saves the state as the checkpoint of a step. All ranks call it with the same step, between
// two steps of the optimizers. The program may change the state when Save returns. If it does so by
// its own kernel or copy, it calls [autograd.Variable.BumpVersion] first.
//
// Without Options.Async, Save returns when all ranks' shares are durable and the checkpoint is the latest
// one. With Options.Async, Save returns after it has taken a snapshot. The next Save, Wait or Close then
// returns the error of the write, on all ranks. If Save returns the previous save's error, it saves
// nothing itself. A failed save does not affect the earlier checkpoints.
func (m *Manager) Save(ctx context.Context, step int, state State) error {
	if m.closed {
		return ErrClosed
	}
	if m.o.Async && m.o.SkipBusy {
		busy, err := m.busy(ctx)
		if err != nil || busy {
			return m.saveError(step, err)
		}
	}
	if err := m.Wait(ctx); err != nil {
		return err
	}
	m.o.phase("snapshot")
	m.seq++
	s := &saving{seq: m.seq, step: step, started: time.Now(), done: make(chan struct{})}
	if err := m.snapshot(ctx, s, state); err != nil {
		s.share.Err = err.Error()
	}
	m.writing = s
	writeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.o.Timeout) // ctx may end when Save returns
	s.cancel = cancel
	go func() {
		defer close(s.done)
		defer cancel()
		s.err = m.write(writeCtx, s)
		m.o.phase("idle")
	}()
	if m.o.Async {
		return nil // even if the snapshot failed: then the same later call returns the error on all ranks
	}
	return m.Wait(ctx)
}

// saveError adds the step to err, unless err is nil.
func (m *Manager) saveError(step int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("checkpoint: saving step %d in %s: %w", step, m.dir, err)
}

// Wait waits until the asynchronous save in progress, if there is one, is complete, and returns its
// error. Only the first call after a save returns that save's error.
func (m *Manager) Wait(ctx context.Context) error {
	s := m.writing
	if s == nil {
		return nil
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return m.saveError(s.step, context.Cause(ctx))
	}
	m.writing = nil
	return m.saveError(s.step, s.err)
}

// busy reports whether any rank still writes a save. It returns the same on all ranks.
func (m *Manager) busy(ctx context.Context) (bool, error) {
	mine := int64(0)
	if s := m.writing; s != nil {
		select {
		case <-s.done:
		default:
			mine = 1
		}
	}
	ranks, err := comm.AllGatherInts(ctx, m.pg, []int64{mine})
	return slices.ContainsFunc(ranks, func(r []int64) bool { return r[0] > 0 }), err
}

// snapshot enqueues the copies of this rank's part of the state to page-locked memory. It sets the
// fields of s.share that do not depend on the file.
func (m *Manager) snapshot(ctx context.Context, s *saving, state State) error {
	r := &s.share
	r.Step, r.Best = s.step, state.Best
	if s.step < 0 || s.step > maxStep {
		return fmt.Errorf("the step to save is %d, want 0 to %d", s.step, maxStep)
	}
	for i, opt := range state.Optimizers {
		steps, whole := opt.Committed()
		if !whole {
			return fmt.Errorf("optimizer %d is inconsistent after step %d", i, steps)
		}
		r.Optimizers = append(r.Optimizers, steps)
	}
	items, err := state.items()
	if err != nil {
		return err
	}
	r.Layout = layout(items)
	if m.pg.Rank() == 0 {
		if r.Values, err = encodeValues(state.Values); err != nil {
			return err
		}
	}
	if r.RankValues, err = encodeValues(state.RankValues); err != nil {
		return err
	}
	s.pieces = pieces(items, m.pg.Rank(), m.pg.Size())
	if err := m.copy(s); err != nil {
		return err
	}
	if state.Hook == nil {
		return nil
	}
	r.Hook = true
	kept, err := state.Hook.State(ctx)
	for name, t := range kept {
		s.pieces = append(s.pieces, piece{kind: hookKind(m.pg.Rank()), name: name, dtype: t.DType, whole: t.Shape, hi: t.Len(), t: t})
	}
	return err
}

// copy enqueues copies of all pieces to pinned memory, and replaces each piece by its copy. The
// model's buffers, which a forward pass may write, are copied on the compute stream. All other
// pieces are copied on a second stream. The next update waits for that stream; the forward and
// backward passes before the update do not.
func (m *Manager) copy(s *saving) error {
	total := 0
	for _, p := range s.pieces {
		total += device.AlignUp(p.t.Bytes())
	}
	dev := m.pg.Device()
	if m.pinned.Len() < total {
		m.free()
		buf, err := dev.AllocHost(total)
		if err != nil {
			return err
		}
		m.pinned = buf
	}
	at, copies := 0, make([]device.Buffer, len(s.pieces))
	for i, p := range s.pieces {
		copies[i] = m.pinned.Slice(at, p.t.Bytes())
		at += device.AlignUp(p.t.Bytes())
	}
	var held []any // the variables that the copies read
	enqueue := func(on device.Stream, buffers bool) error {
		for i, p := range s.pieces {
			if p.buffer != buffers || p.t.Bytes() == 0 {
				continue
			}
			if err := dev.Copy(on, copies[i], p.t.Buf); err != nil {
				return fmt.Errorf("copying %s: %w", key(p.kind, p.name), err)
			}
			if !buffers {
				held = append(held, p.v)
			}
		}
		return nil
	}
	err := enqueue(dev.Compute(), true)
	if err == nil {
		err = m.copying.WaitFor(dev.Compute().Mark())
	}
	if err == nil {
		err = enqueue(m.copying, false)
	}
	s.copied = m.copying.Mark()
	m.copied = s.copied
	gradsink.HoldWrites(dev, held, s.copied)
	for i := range s.pieces {
		p := &s.pieces[i]
		p.t, p.v = device.NewTensor(copies[i], p.dtype, p.hi-p.lo), nil
	}
	return err
}

// write makes this rank's share durable. On rank 0 it then makes a checkpoint of all shares. It
// runs on the writer's goroutine.
func (m *Manager) write(ctx context.Context, s *saving) error {
	r := &s.share
	if s.copied != nil {
		if err := s.copied.Sync(ctx); err != nil && r.Err == "" {
			r.Err = fmt.Sprintf("the snapshot: %v", err)
		}
	}
	temp := m.temp(fmt.Sprintf("step-%08d-%d", s.step, s.seq))
	if r.Err == "" {
		m.o.phase("write")
		if err := m.writeShare(temp, s); err != nil {
			r.Err = err.Error()
		}
	}
	err := m.report(ctx, m.shareKey(s.seq), r)
	if err != nil && ctx.Err() == nil {
		// The share may be too large to be posted. Tell rank 0, so that no rank waits for this share.
		err = m.report(ctx, m.shareKey(s.seq), &share{Err: err.Error()})
	}
	if err != nil {
		return err
	}
	if m.pg.Rank() > 0 {
		var o outcome
		err := m.await(ctx, 0, m.outcomeKey(s.seq), &o)
		m.forget(ctx, m.shareKey(s.seq))
		if err != nil {
			return fmt.Errorf("rank 0 did not confirm that the checkpoint is complete: %w", err)
		}
		if o.Err != "" {
			return errors.New(o.Err)
		}
		m.completed(s, o.Name)
		return nil
	}
	committed, err := m.commit(ctx, s, temp)
	m.forget(ctx, m.shareKey(s.seq))
	o := outcome{Name: filepath.Base(committed)}
	if err != nil {
		m.fs.RemoveAll(temp) // if this fails, the next Open deletes the folder
		o.Err = err.Error()
	}
	reported := m.report(ctx, m.outcomeKey(s.seq), o)
	if s.seq > 1 {
		m.forget(ctx, m.outcomeKey(s.seq-1)) // all ranks have read the previous outcome, because they take part in this save
	}
	if err := cmp.Or(err, reported); err != nil {
		return err
	}
	m.completed(s, o.Name)
	m.o.phase("clean-up")
	if err := m.deleteOld(committed); err != nil {
		m.pg.Log().Warn("older checkpoints were not deleted", "folder", m.dir, "error", err)
	}
	return nil
}

// Stats describes a save.
type Stats struct {
	Step    int
	Path    string        // the checkpoint's folder
	Bytes   int64         // the size of this rank's file
	Durable time.Duration // the time from the call of Save until the checkpoint was complete
}

// Stats returns the statistics of the last save that completed, or the zero Stats if there is none.
// Any goroutine may call it.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// completed sets the statistics.
func (m *Manager) completed(s *saving, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats = Stats{s.step, filepath.Join(m.dir, name), s.share.File.Bytes, time.Since(s.started)}
	if m.pg.Rank() == 0 {
		telemetry.Checkpointed(s.step, m.stats.Durable)
	}
}

// The ranks' writers exchange reports by posting them, because only the program's goroutine may call
// collectives.

func (m *Manager) shareKey(seq int) string { return fmt.Sprintf("checkpoint/%s/%d", m.id, seq) }

func (m *Manager) outcomeKey(seq int) string { return m.shareKey(seq) + "/outcome" }

// report posts v under key.
func (m *Manager) report(ctx context.Context, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return m.pg.Post(ctx, key, data)
}

// await waits for a report of a rank and decodes it into v.
func (m *Manager) await(ctx context.Context, rank int, key string, v any) error {
	data, err := m.pg.Posted(ctx, key, rank)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("waited %v (Options.Timeout): it did not call Save, or is still writing: %w", m.o.Timeout, err)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data[0], v)
}

// forget withdraws a report that no rank will read. If that fails, the report takes a little memory
// until the group closes.
func (m *Manager) forget(ctx context.Context, key string) { m.pg.Post(ctx, key, nil) }

// shareName returns the name of a rank's file.
func shareName(rank, size int) string {
	return fmt.Sprintf("rank-%05d-of-%05d.safetensors", rank, size)
}

// writeShare writes this rank's file and makes it durable.
func (m *Manager) writeShare(temp string, s *saving) error {
	if err := m.fs.Mkdir(temp); err != nil {
		return err
	}
	r := &s.share
	r.File.Name = shareName(m.pg.Rank(), m.pg.Size())
	tensors := map[string]safetensors.Source{}
	for i := range s.pieces {
		p := &s.pieces[i]
		tensors[key(p.kind, p.name)] = safetensors.Bytes(p.dtype, p.shape(), p.t.Buf.Host())
	}
	header, places, err := safetensors.Plan(tensors, nil)
	if err != nil {
		return err
	}
	r.File.Header, r.File.CRC = int64(len(header)), sum(header)
	sums := make([]checksum, len(s.pieces))
	var summing sync.WaitGroup // of the goroutine that computes the checksums while the file is being written
	summing.Go(func() {
		for i := range s.pieces {
			p := &s.pieces[i]
			sums[i] = sum(p.t.Buf.Host())
			if r.NonFinite == "" && !p.isFinite() {
				r.NonFinite = key(p.kind, p.name)
			}
		}
	})
	err = create(m.fs, filepath.Join(temp, r.File.Name), tensorFile(tensors, nil))
	summing.Wait()
	if err != nil {
		return err
	}
	r.File.Bytes = r.File.Header
	for i := range s.pieces {
		p := &s.pieces[i]
		t := Tensor{Kind: p.kind, Name: p.name, DType: safetensors.Of(p.dtype), Shape: append([]int{}, p.whole...)}
		if p.lo < p.hi {
			t.Parts = []Part{{Lo: p.lo, Hi: p.hi, Offset: places[key(p.kind, p.name)].From, CRC: sums[i]}}
		}
		r.File.Bytes += int64(p.t.Bytes())
		r.Tensors = append(r.Tensors, t)
	}
	return m.fs.SyncFolder(temp)
}
