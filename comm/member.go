package comm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
)

// member returns the identity by which this process introduces itself to the job's store and
// to its peers.
func (w World) member() (m store.Member, err error) {
	m = store.Member{Job: handshake.JobFromEnv(w.Size), Rank: w.Rank}
	if m.Insecure, err = handshake.ReadInsecure(os.Getenv); err != nil {
		return m, fmt.Errorf("comm: %w", err)
	}
	if m.Secret, err = readSecret(); err != nil {
		return m, fmt.Errorf("comm: %w", err)
	}
	if m.Secret == nil && !m.Insecure && w.Size > 1 {
		if err := handshake.CheckOwnUser(); err != nil {
			return m, fmt.Errorf("comm: the ranks cannot know each other by their user: %w: name a file with a secret in %s, the same for all ranks", err, jobenv.TokenFileVar)
		}
	}
	return m, nil
}

// secrets holds the secrets that this process has read, by the names of their files.
var secrets sync.Map

// readSecret returns the job's secret, or nil. A file that has vanished since an earlier Init, such as a
// launcher's temporary one, has the secret that it had.
func readSecret() ([]byte, error) {
	path := os.Getenv(jobenv.TokenFileVar)
	secret, err := handshake.ReadSecret(os.Getenv)
	if known, ok := secrets.Load(path); ok && errors.Is(err, fs.ErrNotExist) {
		return known.([]byte), nil
	}
	if err == nil && path != "" {
		secrets.Store(path, secret)
	}
	return secret, err
}

// anyStore reports whether the job's store may lack goddp's handshake, as the store of torchrun
// does.
func (w World) anyStore() bool {
	return w.AgentStore && os.Getenv(jobenv.StoreVar) != w.masterAddr()
}

// checkExposure returns an error if rank 0 will refuse to host the store, because other hosts
// could reach the store and the job has no secret. The other ranks call checkExposure, so that
// they fail at once rather than wait for the store.
func checkExposure(ctx context.Context, w World, m *store.Member) error {
	if m.Secret != nil || m.Insecure {
		return nil
	}
	hosts, err := net.DefaultResolver.LookupIPAddr(ctx, w.MasterAddr)
	if err != nil {
		return nil // connecting to the store returns the error
	}
	for _, h := range hosts {
		if h.IP.IsLoopback() && (w.oneHost() || namesLoopback(w.MasterAddr)) {
			return nil
		}
	}
	return fmt.Errorf("store %s: %w", w.masterAddr(), store.ErrExposed)
}

// warnOpenStore logs a warning, on rank 0 alone, if the job's store serves every client and the
// job has no secret by which its ranks could recognise each other.
func warnOpenStore(w World, client *store.Client, m *store.Member, log *slog.Logger) {
	if w.Rank == 0 && client.IsPyTorchStore() && m.Secret == nil && !m.Insecure {
		log.Warn("the launcher's store serves anybody who reaches it, and the key by which the ranks recognise each other is in it: "+
			"name a file with a secret in "+jobenv.TokenFileVar+", the same for all ranks, or set "+jobenv.InsecureVar+"=1 where the network is trusted",
			"store", w.masterAddr())
	}
}
