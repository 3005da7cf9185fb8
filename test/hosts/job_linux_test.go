package hosts

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/etcdtest"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// rdzvPort is the default port of the rendezvous.
const rdzvPort = 29400

// job is golaunch on several hosts of a network.
type job struct {
	t      *testing.T
	net    *netns.Network
	flags  []string                 // of every agent
	of     func(node int) []string  // flags of one agent
	worker []string                 // the program and its arguments
	folder string                   // of the job's files
	agents map[int]*testkit.Process // by host: those that were started last
}

// newJob returns a job of workers that train until the test calls finish, on up to `hosts` hosts.
func newJob(t *testing.T, n *netns.Network) *job {
	t.Helper()
	j := &job{t: t, net: n, folder: t.TempDir(), of: func(int) []string { return nil }, agents: map[int]*testkit.Process{}}
	j.flags = []string{"--nproc-per-node", "1", "--rdzv-id", "job", "--token-file", newToken(t)}
	j.worker = []string{program(t, "worker"), "-until", j.finishFile(), "-resume", filepath.Join(j.folder, "checkpoints"), "-pause", "5ms"}
	return j
}

// newToken returns the path of a file with a token.
func newToken(t *testing.T) string {
	t.Helper()
	token := make([]byte, 32)
	rand.Read(token)
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(token)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fastConf are the settings of the rendezvous by which tests take seconds.
var fastConf = fmt.Sprintf("--rdzv-conf=join_timeout=20,last_call_timeout=2,keep_alive_interval=%v", beat.Seconds())

// static has the user number the nodes.
func (j *job) static(nodes int, master netip.Addr) {
	j.flags = append(j.flags, "--nnodes", strconv.Itoa(nodes), "--master-addr", master.String())
	j.of = func(node int) []string { return []string{"--node-rank", strconv.Itoa(node)} }
}

// c10d has the agents meet at an address of one host.
func (j *job) c10d(nodes, endpoint string) {
	j.flags = append(j.flags, "--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, fastConf)
}

// etcd has the agents meet through a cluster of three members, which run on the given hosts.
func (j *job) etcd(nodes string, members ...*netns.Host) *etcdtest.Cluster {
	j.t.Helper()
	var places []etcdtest.Place
	for _, h := range members {
		places = append(places, etcdtest.Place{Addr: h.Addr(0).String(), Start: func(cmd *exec.Cmd) error { return h.Start(cmd) }})
	}
	c := etcdtest.StartAt(j.t, places...)
	j.flags = append(j.flags, "--nnodes", nodes, "--rdzv-backend", "etcd", "--rdzv-endpoint", strings.ReplaceAll(strings.Join(c.Endpoints, ","), "http://", ""), fastConf)
	j.of = func(node int) []string { return []string{"--local-addr", j.net.Hosts[node].Addr(0).String()} }
	return c
}

// endpoint returns the address of the rendezvous on a host.
func endpoint(a netip.Addr) string { return net.JoinHostPort(a.String(), strconv.Itoa(rdzvPort)) }

// start starts the agents of some nodes.
func (j *job) start(nodes ...int) {
	j.t.Helper()
	for _, node := range nodes {
		args := slices.Concat(j.flags, j.of(node), j.worker)
		j.agents[node] = start(j.t, j.net.Hosts[node], nil, program(j.t, "golaunch"), args...)
	}
}

func (j *job) finishFile() string { return filepath.Join(j.folder, "finish") }

// finish has the workers stop training.
func (j *job) finish() {
	j.t.Helper()
	if err := os.WriteFile(j.finishFile(), nil, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// trains waits until the ranks of some nodes train, in a group of so many ranks, for the n-th time.
func (j *job) trains(ranks, n int, nodes ...int) {
	j.t.Helper()
	for _, node := range nodes {
		j.agents[node].Await(fmt.Sprintf(`rank \d+ of %d on host%d trains`, ranks, node), n)
	}
}

// ends checks that the agents of the nodes end with code 0, and that all ranks have the same parameters.
func (j *job) ends(ranks int, nodes ...int) {
	j.t.Helper()
	end := regexp.MustCompile(fmt.Sprintf(`rank \d+ of %d on host\d+ ends at (step \d+: params sha256 [0-9a-f]+)`, ranks))
	digests := map[string]int{}
	for _, node := range nodes {
		a := j.agents[node]
		ends(j.t, a, 0)
		for _, l := range a.Matches(end.String()) {
			digests[end.FindStringSubmatch(l.Text)[1]]++
		}
	}
	if len(digests) != 1 {
		j.t.Errorf("parameters of %d ranks: %v", ranks, digests)
	}
	for digest, n := range digests {
		if n != ranks {
			j.t.Errorf("%d ranks end at %s, want %d", n, digest, ranks)
		}
	}
}

// upTo returns the numbers below n.
func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}
