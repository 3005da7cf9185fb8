// Package etcdtest runs real etcd clusters in tests.
package etcdtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// Cluster is an etcd cluster of real processes on this machine.
type Cluster struct {
	t         *testing.T
	dir       string
	peers     []string
	Endpoints []string
	places    []Place
	members   []*testkit.Process
}

// Place is where a member runs.
type Place struct {
	Addr  string                // the address at which the others reach it
	Start func(*exec.Cmd) error // starts its process
}

// Start starts a cluster of n members on this host: see StartAt.
func Start(t *testing.T, n int) *Cluster {
	t.Helper()
	places := make([]Place, n)
	for i := range places {
		places[i] = Place{"127.0.0.1", (*exec.Cmd).Start}
	}
	return StartAt(t, places...)
}

// StartAt starts a cluster with a member at each place, which the end of the test ends. It needs etcd, and the test is
// long: see package testkit.
func StartAt(t *testing.T, places ...Place) *Cluster {
	t.Helper()
	testkit.Long(t)
	testkit.Need(t, testkit.Command("etcd"))
	c := &Cluster{t: t, dir: t.TempDir(), places: places, members: make([]*testkit.Process, len(places))}
	for _, p := range places {
		for _, urls := range []*[]string{&c.Endpoints, &c.peers} {
			port, _ := testkit.Port(t)
			*urls = append(*urls, fmt.Sprintf("http://%s:%d", p.Addr, port))
		}
	}
	for i := range places {
		c.startMember(i)
	}
	return c
}

// startMember starts a member.
func (c *Cluster) startMember(i int) {
	c.t.Helper()
	var initial []string
	for k, peer := range c.peers {
		initial = append(initial, fmt.Sprintf("m%d=%s", k, peer))
	}
	name := fmt.Sprintf("m%d", i)
	cmd := exec.Command("etcd", "--name", name, "--data-dir", filepath.Join(c.dir, name),
		"--listen-client-urls", c.Endpoints[i], "--advertise-client-urls", c.Endpoints[i],
		"--listen-peer-urls", c.peers[i], "--initial-advertise-peer-urls", c.peers[i],
		"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
		"--heartbeat-interval", "50", "--election-timeout", "250", "--unsafe-no-fsync")
	c.members[i] = testkit.StartBy(c.t, cmd, func() error { return c.places[i].Start(cmd) })
}

// Kill kills a member.
func (c *Cluster) Kill(i int) {
	c.t.Helper()
	c.members[i].Signal(syscall.SIGKILL)
	c.members[i].Wait()
}
