package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/gradsink"
)

// Regroup adapts the model to its process group after the members of the group have changed
// ([comm.ProcessGroup.Reconfigure]). It makes new buckets with the options that New was given, and discards all
// gradients. All ranks call it, in the same order as their other collectives; a rank that has just joined has called
// New before. Regroup leaves parameters, their masters and buffers unchanged. The program must make them equal on all
// ranks, before or after. Passes and Stats count anew. Steps that were captured before are captured again. If Regroup
// fails, the program may only call it again.
//
// Regroup returns an error within NoSync and Join, and with a hook that is not [reducer.Stateless], because a lost
// rank's part of such a state is lost. With package ddp/zero call Regroup of the optimizer.
func (m *Model) Regroup(ctx context.Context) error {
	if err := m.regroup(ctx); err != nil {
		return fmt.Errorf("ddp: regrouping the model: %w", err)
	}
	return nil
}

func (m *Model) regroup(ctx context.Context) error {
	all, buffers, err := m.opts.shared(m.module)
	if err := comm.Agree(ctx, m.pg, errors.Join(err, m.checkRegroup())); err != nil {
		return err
	}
	if err := m.pg.Device().Compute().Sync(ctx); err != nil {
		return err
	}
	for _, p := range m.params { // nothing must refer to the old buckets while the new ones are allocated
		gradsink.Set(p.Var(), nil, nil)
	}
	m.reducer.Free()
	if err := m.connect(ctx, all, buffers); err != nil {
		return err
	}
	m.own()
	m.passState = passState{} // the number of passes decides which ones check the replicas, so it must be equal on all ranks
	return nil
}

// checkRegroup returns an error if the model cannot be adapted to other ranks.
func (m *Model) checkRegroup() error {
	if h, ok := m.hook.(interface{ CanRegroup() error }); ok {
		if err := h.CanRegroup(); err != nil {
			return err
		}
	}
	switch {
	case m.isJoining:
		return errors.New("Regroup was called within Join: want it after Join has returned")
	case m.noSync:
		return errors.New("Regroup was called within NoSync: want it after NoSync has returned")
	case m.hook != nil && !reducer.IsStateless(m.hook):
		return fmt.Errorf("the communication hook %v may keep a state, and a lost rank's part is lost: want a hook that is reducer.Stateless, or resume from a checkpoint", m.hook)
	}
	return nil
}
