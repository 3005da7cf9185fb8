package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher"
)

// nodeRange is the value of --nnodes.
type nodeRange struct{ least, most int }

// rendezvousFlags are the flags that say how the nodes of a job find each other.
type rendezvousFlags struct {
	nodes      nodeRange
	nodeRank   int
	standalone bool
	masterAddr string
	masterPort int
	runID      string
	backend    string
	endpoint   string
	conf       rendezvousConf
	localAddr  string
	tokenFile  string
	insecure   bool
}

// rendezvousConf is the value of --rdzv-conf.
type rendezvousConf struct {
	joinTimeout, lastCall, heartbeat time.Duration
	https                            bool
	caFile, certFile, keyFile        string
	user, passwordFile               string
}

// define declares the flags.
func (r *rendezvousFlags) define(group func(title string) flagSet) {
	fs := group("Rendezvous")
	addFlag(fs, &r.nodes, "nnodes", "1", "n", parseNodes, "nodes of the job, or MIN:MAX: it goes on with at least MIN, and takes in up to MAX")
	addFlag(fs, &r.nodeRank, "node-rank", "0", "n", parseCount, "rank of this node; static only")
	fs.BoolVar(&r.standalone, "standalone", false, "one node and a free port; this is the default")
	addFlag(fs, &r.masterAddr, "master-addr", "", "host", parseHost, "address of the store (default: 127.0.0.1); on several static nodes the address of node 0")
	addFlag(fs, &r.masterPort, "master-port", "0", "port", parsePort, "the workers' MASTER_PORT (default: a free one); the nodes meet at another, 29400 or that of --rdzv-endpoint")
	fs.StringVar(&r.runID, "rdzv-id", "", "name of the job (default: random; \"none\" on several nodes)")
	addFlag(fs, &r.backend, "rdzv-backend", "static", "name", parseBackend, "static: the user numbers the nodes; c10d: the node at the endpoint hosts; etcd: the nodes elect the host")
	fs.StringVar(&r.endpoint, "rdzv-endpoint", "", "host[:port] of the hosting node, default port 29400, or of etcd: host:port,host:port")
	addFlag(fs, &r.conf, "rdzv-conf", "", "k=v,...", parseConf, "join_timeout (or timeout), last_call_timeout and keep_alive_interval in seconds; for etcd "+
		"protocol=https, cacert, cert, key, user and password_file")
	fs.StringVar(&r.localAddr, "local-addr", "", "this node's address for the others (default: the one it connects from)")
	fs.StringVar(&r.tokenFile, "token-file", "", "file with a secret that all nodes know; also "+jobenv.TokenFileVar)
	fs.BoolVar(&r.insecure, "insecure", false, "several nodes without a secret: everybody on the network can join the job")
}

// check returns an error if the values contradict each other.
func (r *rendezvousFlags) check() error {
	for endpoint := range strings.SplitSeq(r.endpoint, ",") {
		if err := checkEndpoint(endpoint); r.endpoint != "" && err != nil {
			return usagef("--rdzv-endpoint %q: %w", endpoint, err)
		}
	}
	switch {
	case r.nodes.most > 1 && r.standalone:
		return usagef("--standalone runs a job of one node, but --nnodes is %d", r.nodes.most)
	case r.nodes.most == 1 && r.nodeRank != 0:
		return usagef("--node-rank %d: want 0, the rank of the only node", r.nodeRank)
	case r.nodes.most == 1:
		return nil
	case r.backend == "static" && r.nodes.least != r.nodes.most:
		return usagef("--nnodes %d:%d: want one number with --rdzv-backend static; a range needs --rdzv-backend c10d or etcd", r.nodes.least, r.nodes.most)
	case r.backend == "static" && r.nodeRank >= r.nodes.most:
		return usagef("--node-rank %d: want less than --nnodes, %d", r.nodeRank, r.nodes.most)
	case r.backend == "static" && r.masterAddr == "" && r.endpoint == "":
		return usagef("--nnodes %d needs --master-addr, the address of node 0, or --rdzv-backend c10d or etcd", r.nodes.most)
	case r.backend != "static" && r.endpoint == "":
		return usagef("--rdzv-backend %s needs --rdzv-endpoint", r.backend)
	case r.backend != "etcd" && strings.Contains(r.endpoint, ","):
		return usagef("--rdzv-endpoint %s: want one endpoint; a list needs --rdzv-backend etcd", r.endpoint)
	case r.backend != "etcd" && r.masterPort != 0 && strings.HasSuffix(r.meetingPoint(), ":"+strconv.Itoa(r.masterPort)):
		return usagef("--master-port %d is the port at which the nodes meet: want another, or none", r.masterPort)
	case r.backend == "etcd" && !r.conf.https && (r.conf.caFile != "" || r.conf.certFile != ""):
		return usagef("--rdzv-conf: cacert and cert need protocol=https")
	case (r.conf.certFile == "") != (r.conf.keyFile == ""):
		return usagef("--rdzv-conf: want both cert and key, or neither")
	}
	return nil
}

// config returns how the nodes find each other, nil for one node.
func (r *rendezvousFlags) config() (*launcher.Nodes, error) {
	if r.nodes.most == 1 {
		return nil, nil
	}
	n := &launcher.Nodes{
		Min: r.nodes.least, Max: r.nodes.most, Static: r.backend == "static", Rank: r.nodeRank, LocalAddr: r.localAddr,
		JoinTimeout: r.conf.joinTimeout, LastCall: r.conf.lastCall, Heartbeat: r.conf.heartbeat,
	}
	if r.backend == "etcd" {
		var err error
		n.Etcd, err = r.etcd()
		return n, err
	}
	n.Endpoint = r.meetingPoint()
	return n, nil
}

// meetingPoint returns the address of the rendezvous without etcd.
func (r *rendezvousFlags) meetingPoint() string {
	return withPort(cmp.Or(r.endpoint, r.masterAddr), launcher.DefaultPort)
}

// etcd returns how to reach etcd.
func (r *rendezvousFlags) etcd() (*launcher.Etcd, error) {
	e := &launcher.Etcd{HTTPS: r.conf.https, CAFile: r.conf.caFile, CertFile: r.conf.certFile, KeyFile: r.conf.keyFile, Username: r.conf.user}
	for endpoint := range strings.SplitSeq(r.endpoint, ",") {
		e.Endpoints = append(e.Endpoints, withPort(endpoint, 2379))
	}
	if r.conf.passwordFile != "" {
		text, err := files.Read(r.conf.passwordFile, 4<<10)
		if err != nil {
			return nil, err
		}
		e.Password = strings.TrimSpace(string(text))
	}
	return e, nil
}

// env returns the variables that pass the job's secret to the launcher and the workers.
func (r *rendezvousFlags) env() (env []string) {
	if r.tokenFile != "" {
		env = append(env, jobenv.TokenFileVar+"="+r.tokenFile)
	}
	if r.insecure {
		env = append(env, jobenv.InsecureVar+"=1")
	}
	return env
}

// nameTokenFile adds the flag's name to an error about the job's secret, if the secret is in the flag's
// file.
func (r *rendezvousFlags) nameTokenFile(err error) error {
	var invalid *handshake.InvalidSecretError
	if r.tokenFile == "" || !errors.As(err, &invalid) {
		return err
	}
	return usagef("--token-file %q: %w", r.tokenFile, invalid.Err)
}

// withPort adds a port to an address that has none.
func withPort(addr string, port int) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(port))
}

// parseHost parses a host name or an address. An IPv6 address may be in brackets, as torchrun wants it.
func parseHost(text string) (string, error) {
	host := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		host = text[1 : len(text)-1]
	}
	if host == "" || strings.ContainsAny(host, "[]/ ") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", errors.New("want a host name or an address")
	}
	return host, nil
}

// checkEndpoint returns an error if a text is neither a host nor host:port.
func checkEndpoint(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = text, "1"
	}
	_, err = parseHost(host)
	if n, badPort := parsePort(port); err != nil || badPort != nil || n == 0 {
		return errors.New("want host or host:port")
	}
	return nil
}

// parseNodes parses a number of nodes, or a range.
func parseNodes(text string) (nodeRange, error) {
	least, most, isRange := strings.Cut(text, ":")
	if !isRange {
		most = least
	}
	a, errA := strconv.Atoi(least)
	b, errB := strconv.Atoi(most)
	if errA != nil || errB != nil || a < 1 || b < a {
		return nodeRange{}, errors.New("want a number of nodes, or MIN:MAX")
	}
	return nodeRange{a, b}, nil
}

func parseBackend(text string) (string, error) {
	switch text {
	case "static", "c10d", "etcd":
		return text, nil
	case "etcd-v2":
		return "", errors.New("the API of etcd version 2 is not supported: want static, c10d or etcd (version 3)")
	}
	return "", errors.New("want static, c10d or etcd")
}

// parseConf parses "key=value,key=value".
func parseConf(settings string) (conf rendezvousConf, err error) {
	seconds := func(to *time.Duration) func(string) error {
		return func(value string) (err error) {
			*to, err = parseInterval(value)
			return err
		}
	}
	text := func(to *string) func(string) error {
		return func(value string) error {
			*to = value
			return nil
		}
	}
	keys := map[string]func(string) error{
		"join_timeout": seconds(&conf.joinTimeout), "timeout": seconds(&conf.joinTimeout), "last_call_timeout": seconds(&conf.lastCall), "keep_alive_interval": seconds(&conf.heartbeat),
		"cacert": text(&conf.caFile), "cert": text(&conf.certFile), "key": text(&conf.keyFile),
		"user": text(&conf.user), "password_file": text(&conf.passwordFile),
		"protocol": func(value string) error {
			if value != "http" && value != "https" {
				return errors.New("want http or https")
			}
			conf.https = value == "https"
			return nil
		},
	}
	for setting := range strings.SplitSeq(settings, ",") {
		if settings == "" {
			break
		}
		key, value, _ := strings.Cut(setting, "=")
		set := keys[strings.TrimSpace(key)]
		if set == nil {
			known := make([]string, 0, len(keys))
			for k := range keys {
				known = append(known, k)
			}
			slices.Sort(known)
			return conf, fmt.Errorf("%q is not one of %s", key, strings.Join(known, ", "))
		}
		if err := set(strings.TrimSpace(value)); err != nil {
			return conf, fmt.Errorf("%s: %w", key, err)
		}
	}
	return conf, nil
}
