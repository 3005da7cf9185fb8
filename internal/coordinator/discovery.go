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
	"time"

	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/wire"
)

// addressKey is the key of the coordinator's address in the job's store.
const addressKey = "coordinator"

// LauncherPrefix is the prefix of the keys that a launcher uses in a job's store. A launcher
// publishes the coordinator's address under this prefix.
const LauncherPrefix = "goddp"

// address says where the coordinator of a job can be reached.
type address struct {
	Addrs    []string // a rank tries these addresses in this order
	Host     string   // describes the process that hosts the coordinator
	HostRank int      // the rank that hosts the coordinator; -1: no rank hosts it
	// Token and the job's secret determine the key of the connections. In a job without a
	// secret, every process that can read the store knows the key.
	Token    []byte
	Interval time.Duration // Options.Interval of the coordinator, which the ranks use too
}

// Publish starts a coordinator for a job of `size` ranks and publishes its address in the job's
// store. listen is host:port; if it is empty, the coordinator listens on the loopback interface. Publish ignores
// o.Key and makes a key itself.
func Publish(ctx context.Context, kv store.Store, m store.Member, listen string, size int, o ClientOptions) (*Server, error) {
	token := []byte(rand.Text())
	if listen == "" {
		listen = net.JoinHostPort(wire.Loopback(), "0")
	}
	s, err := Listen(listen, size, o.of(m, token))
	if err != nil {
		return nil, err
	}
	addrs, err := Reachable(s.Addr())
	if err == nil {
		var value []byte
		if value, err = json.Marshal(address{Addrs: addrs, Host: o.Host, HostRank: o.HostRank, Token: token, Interval: s.opts.Interval}); err == nil {
			err = kv.Set(ctx, addressKey, value)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Find waits until the job's store holds the coordinator's address, and connects to the coordinator.
func Find(ctx context.Context, kv store.Store, m store.Member, o ClientOptions) (*Client, error) {
	value, err := kv.Get(ctx, addressKey)
	if err != nil {
		return nil, err
	}
	var p address
	if err := json.Unmarshal(value, &p); err != nil {
		return nil, fmt.Errorf("reading the coordinator's address from the store: %w", err)
	}
	o.Options, o.Host, o.HostRank = o.of(m, p.Token), p.Host, p.HostRank
	o.Interval = p.Interval
	if o.Addr != "" {
		p.Addrs = []string{o.Addr}
	}
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

// of returns a copy of o for member m. In the copy, Job, HasSecret and Insecure come from m, and Key is
// computed from m's secret and the token.
func (o Options) of(m store.Member, token []byte) Options {
	h := hmac.New(sha256.New, m.Secret)
	h.Write(token)
	o.Job, o.HasSecret, o.Insecure, o.Key = m.Job, m.Secret != nil, m.Insecure, h.Sum(nil)
	return o
}

// Reachable returns the addresses at which other hosts can try to reach a listener with address a.
// This is a or, if the listener listens on all interfaces, the addresses of all interfaces.
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
