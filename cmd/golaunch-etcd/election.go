package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/files"
)

// requestTimeout is the timeout of a request, so that a request to a dead member is retried at another member.
const requestTimeout = 5 * time.Second

// etcdElection is the election of one job.
type etcdElection struct {
	client *clientv3.Client
	ttl    int // seconds
	host   string
	state  string
	ended  string
	// If the key `ended` was written after the revision since, it says that this agent's job has ended.
	// -1: the agent has not read etcd yet.
	since int64
}

// etcd keeps the key `state` for stateTTL seconds after the death of the host that wrote it, and the key `ended`
// for endedTTL seconds.
const (
	stateTTL = 30
	endedTTL = 24 * 60 * 60
)

// expiryDelay is how much later than the TTL etcd may delete the key of a host that is dead or stopped. etcd
// raises a TTL below its minimum, 2 s by default, and checks for expired leases twice a second.
const expiryDelay = 3 * time.Second

// open connects with etcd. ctx bounds the first connection.
func open(ctx context.Context, o election.Options) (election.Election, error) {
	config, err := tlsConfig(o)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: o.Endpoints, TLS: config, Username: o.Username, Password: o.Password,
		DialTimeout: requestTimeout, DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %v: %w", o.Endpoints, err)
	}
	prefix := "/goddp/" + o.Name + "/"
	e := &etcdElection{client: client, ttl: max(1, int(o.TTL/time.Second)), host: prefix + "host", state: prefix + "state", ended: prefix + "ended", since: -1}
	// etcd may be starting.
	if err := e.retry(ctx, func(ctx context.Context) error {
		_, err := client.Get(ctx, e.host)
		return err
	}); err != nil {
		client.Close()
		return nil, fmt.Errorf("etcd at %v: %w", o.Endpoints, err)
	}
	return e, nil
}

func (e *etcdElection) Close() error { return e.client.Close() }

func (e *etcdElection) Elect(ctx context.Context, addr, dead string) (string, election.Term, error) {
	waiting, cancel := context.WithTimeoutCause(ctx, time.Duration(e.ttl)*time.Second+expiryDelay, errStillElected)
	defer cancel()
	for {
		v, err := e.look(ctx)
		if err != nil {
			return "", nil, err
		}
		if e.since < 0 {
			e.since = v.revision
			if dead != "" { // this process takes the place of one that was killed
				e.since = 0 // if the key `ended` exists, it is about this job, because a new job would have deleted it: see stand
			}
		}
		switch {
		case v.host != "" && v.host != dead:
			return v.host, nil, nil
		case v.host != "":
			switch err := e.awaitChange(waiting, v.revision); {
			case errors.Is(err, errStillElected):
				return v.host, nil, nil
			case err != nil:
				return "", nil, err
			}
		case v.ended > e.since:
			return "", nil, election.ErrJobEnded
		default:
			term, err := e.stand(ctx, addr, v)
			if err != nil {
				return "", nil, err
			}
			if term != nil {
				return "", term, nil
			}
		}
	}
}

var errStillElected = errors.New("in etcd the lost host of the rendezvous is still the elected one")

// view is what an agent reads from etcd before it stands for election.
type view struct {
	host     string // the address of the elected agent; "" if there is none
	ended    int64  // the revision at which the key `ended` was written; 0 if the key does not exist
	revision int64  // the revision of etcd at this answer
}

func (e *etcdElection) look(ctx context.Context) (v view, err error) {
	err = e.retry(ctx, func(ctx context.Context) error {
		r, err := e.client.Txn(ctx).Then(clientv3.OpGet(e.host), clientv3.OpGet(e.ended)).Commit()
		if err != nil {
			return err
		}
		v = view{revision: r.Header.Revision}
		if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			v.host = string(kvs[0].Value)
		}
		if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			v.ended = kvs[0].ModRevision
		}
		return nil
	})
	return v, err
}

// awaitChange waits until the key host changes after a revision.
func (e *etcdElection) awaitChange(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range e.client.Watch(ctx, e.host, clientv3.WithRev(revision+1)) {
		if len(r.Events) > 0 {
			return nil
		}
		if r.Err() != nil {
			return nil // the caller reads again
		}
	}
	return context.Cause(ctx)
}

// stand makes this agent the host, unless the key `host` exists: it writes `host`, and deletes the key `ended` of
// an earlier job. It returns nil if etcd has changed since v: another agent was first, or the job has ended.
func (e *etcdElection) stand(ctx context.Context, addr string, v view) (*term, error) {
	session, err := concurrency.NewSession(e.client, concurrency.WithTTL(e.ttl), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	memory, err := concurrency.NewSession(e.client, concurrency.WithTTL(max(stateTTL, 5*e.ttl)), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		session.Close()
		return nil, err
	}
	t := &term{election: e, session: session, memory: memory, addr: addr}
	// The second comparison recognizes this agent's own write, if the reply to a transaction was lost.
	err = e.retry(ctx, func(ctx context.Context) error {
		r, err := e.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(e.host), "=", 0), clientv3.Compare(clientv3.ModRevision(e.ended), "=", v.ended)).
			Then(clientv3.OpPut(e.host, addr, clientv3.WithLease(session.Lease())), clientv3.OpGet(e.state), clientv3.OpDelete(e.ended)).
			Else(clientv3.OpGet(e.host), clientv3.OpGet(e.state)).
			Commit()
		if err != nil {
			return err
		}
		if !r.Succeeded {
			kvs := r.Responses[0].GetResponseRange().Kvs
			if len(kvs) == 0 || clientv3.LeaseID(kvs[0].Lease) != session.Lease() {
				return errNotElected
			}
		}
		if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			return json.Unmarshal(kvs[0].Value, &t.state)
		}
		return nil
	})
	if err == nil && t.state != (election.State{}) {
		err = t.Save(ctx, t.state) // under this agent's lease
	}
	if err != nil {
		session.Close()
		memory.Close()
		if errors.Is(err, errNotElected) {
			return nil, nil
		}
		return nil, err
	}
	return t, nil
}

var errNotElected = errors.New("another agent was elected in the meantime")

// retry repeats a request that etcd did not answer in time, or that failed because of a lost member.
func (e *etcdElection) retry(ctx context.Context, request func(context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, requestTimeout)
		err := request(once)
		cancel()
		if err == nil || errors.Is(err, errNotElected) || !temporary(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// maxPEM is the largest size of a file of certificates or of a key, in bytes.
const maxPEM = 16 << 20

// tlsConfig returns the configuration of connections with etcd; nil without HTTPS.
func tlsConfig(o election.Options) (*tls.Config, error) {
	if !o.HTTPS {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		text, err := files.Read(o.CAFile, maxPEM)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s contains no certificate in PEM format", o.CAFile)
		}
	}
	if o.CertFile != "" {
		chain, err := files.Read(o.CertFile, maxPEM)
		if err != nil {
			return nil, err
		}
		key, err := files.Read(o.KeyFile, maxPEM)
		if err != nil {
			return nil, err
		}
		cert, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", o.CertFile, o.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}
