package main

import (
	"context"
	"encoding/json"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/goddp/goddp/internal/election"
)

// term is the time during which this agent is elected.
type term struct {
	election *etcdElection
	session  *concurrency.Session // holds the lease of the key host
	memory   *concurrency.Session // holds the lease of the key state
	addr     string
	state    election.State
}

// State returns how far the job was when this agent was elected.
func (t *term) State() election.State { return t.state }

// Over returns a channel that is closed when this agent is not elected any more, because etcd has not
// heard of it for the TTL.
func (t *term) Over() <-chan struct{} { return t.session.Done() }

// Save writes how far the job is. It returns election.ErrOver if this agent is not elected any more.
func (t *term) Save(ctx context.Context, s election.State) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	e := t.election
	return e.retry(ctx, func(ctx context.Context) error {
		r, err := e.client.Txn(ctx).
			If(clientv3.Compare(clientv3.LeaseValue(e.host), "=", t.session.Lease())).
			Then(clientv3.OpPut(e.state, string(text), clientv3.WithLease(t.memory.Lease()))).
			Commit()
		if err == nil && !r.Succeeded {
			return election.ErrOver
		}
		return err
	})
}

// Resign ends the term at once, so that another agent can be elected. If the job has ended, its state is
// deleted, and the key `ended` is written.
func (t *term) Resign(ctx context.Context, ended bool) error {
	if !ended {
		t.memory.Orphan()
		return t.session.Close()
	}
	return errors.Join(t.markEnd(ctx), t.memory.Close(), t.session.Close())
}

// markEnd replaces the keys `host` and `state` by the key `ended`. It returns election.ErrOver if this agent is not
// elected any more: the job may go on with another host.
func (t *term) markEnd(ctx context.Context) error {
	e := t.election
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var lease clientv3.LeaseID
	return e.retry(ctx, func(ctx context.Context) error {
		if lease == clientv3.NoLease {
			granted, err := e.client.Grant(ctx, endedTTL)
			if err != nil {
				return err
			}
			lease = granted.ID
		}
		r, err := e.client.Txn(ctx).
			If(clientv3.Compare(clientv3.LeaseValue(e.host), "=", t.session.Lease())).
			Then(clientv3.OpPut(e.ended, "", clientv3.WithLease(lease)), clientv3.OpDelete(e.host), clientv3.OpDelete(e.state)).
			Else(clientv3.OpGet(e.ended)).
			Commit()
		if err != nil || r.Succeeded {
			return err
		}
		// If the reply to a transaction was lost, the key is this agent's own.
		if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && clientv3.LeaseID(kvs[0].Lease) == lease {
			return nil
		}
		_, _ = e.client.Revoke(ctx, lease) // else it expires
		return election.ErrOver
	})
}

// temporary reports whether it can help to repeat a request, because etcd elects a new leader or has lost a member.
func temporary(err error) bool {
	if errors.Is(err, election.ErrOver) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code() == codes.Unavailable
	}
	s, ok := status.FromError(err)
	return ok && (s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded)
}
