package coordinator

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/goddp/goddp/store"
)

// keyPlace is, in a job's store, where the coordinator is.
const keyPlace = "coordinator"

// LauncherPrefix is the part of a job's store in which a launcher says where the coordinator of
// all its sessions is.
const LauncherPrefix = "goddp"

// place is where the coordinator of a job can be reached.
type place struct {
	Addrs    []string // tried in turn
	Host     string   // whose process it is in
	HostRank int      // its rank; -1: it has none
	// Token is what the key of the connections is made of, beside the job's secret. Where
	// there is none, whoever can read the store has the key.
	Token []byte
}

// Publish starts a coordinator for a job of this many ranks, and says in the job's store where
// it is. listen is host:port; o.Key is not used.
func Publish(ctx context.Context, kv store.Store, m store.Member, listen string, size int, o ClientOptions) (*Server, error) {
	token := []byte(rand.Text())
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	s, err := Listen(listen, size, o.of(m, token))
	if err != nil {
		return nil, err
	}
	addrs, err := Reachable(s.Addr())
	if err == nil {
		var value []byte
		if value, err = json.Marshal(place{Addrs: addrs, Host: o.Host, HostRank: o.HostRank, Token: token}); err == nil {
			err = kv.Set(ctx, keyPlace, value)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Find connects to the coordinator that the job's store names, once it does.
func Find(ctx context.Context, kv store.Store, m store.Member, o ClientOptions) (*Client, error) {
	value, err := kv.Get(ctx, keyPlace)
	if err != nil {
		return nil, err
	}
	var p place
	if err := json.Unmarshal(value, &p); err != nil {
		return nil, fmt.Errorf("where the coordinator is: %w", err)
	}
	o.Options, o.Host, o.HostRank = o.of(m, p.Token), p.Host, p.HostRank
	var errs []error
	for _, addr := range p.Addrs {
		c, err := Dial(ctx, addr, m.Rank, o)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// of adds what a member of a job knows.
func (o Options) of(m store.Member, token []byte) Options {
	h := hmac.New(sha256.New, m.Secret)
	h.Write(token)
	o.Job, o.HasSecret, o.Insecure, o.Key = m.Job, m.Secret != nil, m.Insecure, h.Sum(nil)
	return o
}

// Reachable is the addresses at which others can try to reach a listener: its own, or those
// of all interfaces where it listens on every one.
func Reachable(a *net.TCPAddr) ([]string, error) {
	if !a.IP.IsUnspecified() {
		return []string{a.String()}, nil
	}
	ifaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out, loopback []string
	for _, i := range ifaces {
		n, ok := i.(*net.IPNet)
		if !ok {
			continue
		}
		at := net.JoinHostPort(n.IP.String(), strconv.Itoa(a.Port))
		switch {
		case n.IP.IsLoopback():
			loopback = append(loopback, at)
		case n.IP.IsGlobalUnicast():
			out = append(out, at)
		}
	}
	return append(out, loopback...), nil
}
