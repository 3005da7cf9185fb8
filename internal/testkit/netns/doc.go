// Package netns makes networks of hosts for tests. Each host is a network namespace with a name and
// addresses of its own. The hosts are connected by Ethernet segments, which can be interrupted and slowed
// down.
//
//	n := netns.New(t, 3, 1)
//	cmd := exec.Command("golaunch", ...)
//	err := n.Hosts[0].Start(cmd)
//	...
//	n.Isolate(n.Hosts[2])
//
// A segment is a bridge in a namespace of its own, so this machine's network stays as it is. No namespace
// has a name in the file system: all of them end with the test's process, however that ends, and so do the
// processes that were started on the hosts.
//
// A test that calls New runs with -long alone (see package testkit). New skips the test and says why, if namespaces
// are not permitted or if ip, tc or nft is not installed. The package needs Linux.
package netns
