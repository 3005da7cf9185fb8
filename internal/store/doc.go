// Package store implements the bootstrap key-value store of a job. The processes of a job start
// with only the store's address. Through the store they exchange the few hundred bytes that they
// need to connect to each other.
//
// # Implementations
//
// [Store] is the interface. All implementations use the same table type, so they agree on
// every detail:
//
//   - [Listen] starts a [Server], which owns a table and serves it on TCP.
//   - [Dial] connects a [Client] to a server of this package or of PyTorch.
//   - [Server.Local] returns a handle on a server's table for the process that
//     hosts it. [NewLocal] makes a table without a server, for ranks that are
//     goroutines of one process.
//   - [Prefix] is a view of any Store in which every key starts with "prefix/".
//
// A value stays until it is overwritten or deleted. The store ends with its server. It is
// neither replicated nor written to disk.
//
// # Which clients a server serves
//
// A [Server] serves a connection only after it has admitted it:
//
//   - A [Client] with a [Member] performs a handshake. Client and server compare their
//     jobs, and prove to each other that they know the job's secret, without sending it.
//     If something differs, both get a [HandshakeError].
//   - A client without a handshake, such as PyTorch's, is served if the kernel says that
//     it is a process of the same user on this host. On systems that cannot say so, such
//     as macOS, every process that connects over loopback is served.
//   - If the job has no secret, clients with a handshake must meet the second condition
//     too, and Listen refuses an address that other hosts can reach ([ErrExposed]).
//   - If [Member].Insecure is set, the server serves every client.
//
// The handshake is sent as COMPARE_SET requests, with a key that no caller can use and the message
// as both values. PyTorch's server returns the value and stores nothing. A Client recognizes
// PyTorch's server by this answer ([Client.IsPyTorchStore]). After the handshake nothing is encrypted
// or authenticated. SECURITY.md describes the protection in full.
//
// # Waiting
//
// Get and Wait return when their keys exist, when the context ends, or when the
// handle or the server is closed. Nothing polls: the table keeps a waiter under one missing
// key, and the call that creates the key wakes it.
//
// Errors are *[OpError]. It names the operation, the keys, the server and the time that the
// call took. It wraps the error and cause of the context, or one of [ErrServerLost],
// [ErrClosed], [ErrLimit], [ErrNotInteger] and [*HandshakeError].
//
// # Limits
//
// A server counts the memory that it holds for its clients, not the bytes on the wire: a
// list of many short keys takes several times its bytes on the wire. [Limits] bound one
// request, one wait and the table. The following rules bound what clients hold together:
//
//   - Clients that have proved to belong to the job have limits on connections and on
//     memory in flight ([ServerOptions]). All other clients have separate limits
//     ([ServerOptions].Unproven). The others may fill the table up to [Quota].TableBytes.
//     The rest of [Limits].TableBytes is reserved for the job.
//   - Each connection has 16 KiB for requests and replies. Larger ones use the shared memory in
//     flight. If none is left for a request, the server closes only that connection.
//   - A connection that has not sent a request is silent. If the silent connections reach
//     their limit, or the process runs out of file descriptors, the server closes the
//     silent connection of median age. So silent connections keep no client out, and a
//     flood of them spares the connections that existed before it.
//   - The same rule holds for connections that are not known to come from this user, until
//     they have proved to belong to the job. There are at most 256 such connections.
//   - Connections use at most four fifths of the process's file descriptors.
//
// The server logs the first rejected connection at once. Then it logs at most one line a
// second, with the number of rejections.
//
// # The protocol
//
// The server speaks the protocol of PyTorch's TCPStore. So PyTorch workers can use it, and
// Go workers can join a job whose store PyTorch hosts. The protocol has two dialects.
// Integers are little-endian. A string is its length (u64) and its bytes. "keys" is a count
// (u64) and as many strings.
//
//	code 1.x  code 2.x  request      body                       reply
//	-         0         VALIDATE     u32 0x3C85F7CE             -
//	0         1         SET          key, value                 -
//	1         2         COMPARE_SET  key, expected, desired     value
//	2         3         GET          key                        value, empty if absent
//	3         4         ADD          key, i64                   i64, the sum
//	4         5         CHECK        keys                       u8, 0 all exist, 1 not
//	5         6         WAIT         keys                       u8 0, once all exist
//	6         7         GETNUMKEYS   -                          i64
//	8         8         DELETE_KEY   key                        i64, 1 deleted, 0 absent
//	9         9         APPEND       key, value                 -
//	10        10        MULTI_GET    keys                       a value for each
//	11        11        MULTI_SET    count, (key, value)...     -
//	12        12        CANCEL_WAIT  -                          u8 1
//	-         13        PING         u32                        the same u32
//
// The first request of a 2.x client is VALIDATE. The first request of a 1.x client may be
// any. The byte 0 is VALIDATE in dialect 2.x and SET in dialect 1.x. The next four bytes
// tell the dialects apart: if the magic number were the length of a key, the key would
// have a gigabyte. PyTorch 1.13 and 2.0 speak dialect 1.x; 2.0 added the codes 9 to 12.
// Code 7 of dialect 1.x is WATCH_KEY. The server refuses this request, the queues of recent
// 2.x versions (codes 14 to 16), LIST_KEYS (17) and BARRIER (18). The protocol has no error
// reply, so the server refuses a request by closing the connection, and logs the reason.
//
// The server adapts to three properties of PyTorch's clients:
//
//   - A 1.x client opens a second connection on which it never sends anything. If the
//     server closes it, the client spins on a CPU. So the deadline of a request starts
//     with its first byte.
//   - A 1.x client whose wait timed out cannot cancel it, and goes on using the connection.
//     So every request ends the pending wait of its connection. If the key appears between
//     the timeout and that request, all later replies are still off by one. Only dialect
//     2.x can prevent this.
//   - A client of either dialect that joins with wait_for_workers adds one to the key
//     "init/". See [ClientOptions.Announce].
//
// PyTorch puts "/" before each key of its callers. So do the Client and the local store.
// The slash is added in one place, and callers do not see it: the key "k" of this package
// is the key "k" of PyTorch. GETNUMKEYS counts all keys of the table, including "init/".
package store
