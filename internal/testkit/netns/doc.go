// Package netns creates networks of hosts for tests. Each host is a network namespace with its own name and
// addresses. The hosts are connected by Ethernet segments, which can be interrupted and slowed down.
//
//	n := netns.New(t, 3, 1)
//	cmd := exec.Command("golaunch", ...)
//	err := n.Hosts[0].Start(cmd)
//	...
//	n.Isolate(n.Hosts[2])
//
// A segment is a bridge in a separate namespace, so this machine's network does not change. No namespace has a name
// in the file system: all of them end with the test's process, however that ends, and so do the processes that were
// started on the hosts.
//
// A test that calls New runs only with -long (see package testkit). New skips the test and says why, if namespaces
// are not permitted or if ip, tc or nft is not installed. The package needs Linux.
package netns
