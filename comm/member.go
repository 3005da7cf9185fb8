package comm

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/store"
)

// member is this process as it introduces itself to the job's store and to its peers.
func (w World) member() (m store.Member, err error) {
	m = store.Member{Job: handshake.JobFromEnv(w.Size), Rank: w.Rank}
	if m.Insecure, err = handshake.ReadInsecure(os.Getenv); err != nil {
		return m, fmt.Errorf("comm: %w", err)
	}
	if m.Secret, err = handshake.ReadSecret(os.Getenv); err != nil {
		return m, fmt.Errorf("comm: %w", err)
	}
	return m, nil
}

// anyStore tells whether a store will do that is not goddp's: that of a launcher such as
// torchrun.
func (w World) anyStore() bool {
	return w.AgentStore && os.Getenv(handshake.StoreVar) != w.masterAddr()
}

// checkExposure returns the error with which rank 0 refuses to host the store, on the
// ranks that would wait for it.
func checkExposure(ctx context.Context, w World, m *store.Member) error {
	if m.Secret != nil || m.Insecure {
		return nil
	}
	hosts, err := net.DefaultResolver.LookupIPAddr(ctx, w.MasterAddr)
	if err != nil {
		return nil // dialling says it
	}
	for _, h := range hosts {
		if h.IP.IsLoopback() && (w.oneHost() || namesLoopback(w.MasterAddr)) {
			return nil
		}
	}
	return fmt.Errorf("store %s: %w", w.masterAddr(), store.ErrExposed)
}

// warnOpenStore says once for the job that its store keeps nobody out, and its ranks have
// no secret by which to know each other.
func warnOpenStore(w World, client *store.Client, m *store.Member, log *slog.Logger) {
	if w.Rank == 0 && client.Foreign() && m.Secret == nil && !m.Insecure {
		log.Warn("the launcher's store serves anybody who reaches it, and what the ranks know each other by is in it: "+
			"name a file with a secret in "+handshake.TokenFileVar+", the same for all ranks, or set "+handshake.InsecureVar+"=1 where the network is trusted",
			"store", w.masterAddr())
	}
}
