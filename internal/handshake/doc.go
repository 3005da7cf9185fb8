// Package handshake authenticates the connections of a job: connections between a store and its clients,
// and between two ranks. The handshake is the first exchange on a connection. It tells each end which
// process is at the other end, and whether both belong to the same job. If the job has a secret, each end
// verifies that the other end knows it.
//
// # The four messages
//
//	dialler                                listener
//	hello: identity, key share      →
//	                                ←      answer: identity, key share
//	proof: HMAC as the dialler      →
//	                                ←      accept: HMAC as the listener
//
// Instead of an answer or an accept, the listener may send a rejection with the reason, so that both ends
// report the same reason.
//
// Both proofs are HMAC-SHA256 under the key, over the direction and the hashes of hello and
// answer. These two messages hold the role, the rank and the job of each end, and its share: a
// random string made for this connection, between ranks an X25519 public key. So
// a proof is valid only on one connection, in one direction, between these two ends. It can
// be neither replayed nor reflected, nor used by another rank. The key is never sent. If
// the job has no secret, the key is empty, and the proofs prove nothing.
//
// # After the handshake
//
// If two ranks on different hosts have a secret, what they send next is encrypted and authenticated with
// AES-128-GCM ([ProtectedConn]). HKDF-SHA256 derives a key for each direction from the secret that the two
// shares agree on, from the key of the handshake, and from hello and answer. So only the two ends of the
// handshake have these keys, and a secret that leaks later does not reveal earlier traffic (forward
// secrecy). Changed, repeated or inserted bytes only break the connection. Both ends derive from hello and
// answer whether to encrypt, so an attacker cannot turn encryption off.
//
// Other connections are neither encrypted nor authenticated after the handshake: connections within one
// host, connections with a store or coordinator, all connections of a job without a secret, and, if
// GODDP_UNPROTECTED_DATA is on, connections between ranks.
//
// # Same job
//
// [Job] holds the properties on which the processes of a job must agree. [Job.Compare]
// compares the number of ranks, and the id that the environment gives the job. If the
// environment gives no id, it compares the program and its arguments instead.
//
// # Same user
//
// A job without a secret accepts only connections from processes of its own user. [SameUser] determines
// the user of the process at the other end. Whether it can do so depends on the connection and the
// platform:
//
//   - Unix sockets: Linux (SO_PEERCRED) and macOS (LOCAL_PEERCRED) name the user of the process that
//     called connect.
//   - TCP on Linux: the kernel is asked for the socket at the other end (NETLINK_SOCK_DIAG), by the exact
//     addresses and ports of both ends. The answer is the user of the process that made the socket.
//   - TCP on macOS and elsewhere: no documented interface names the user of a TCP connection. SameUser
//     returns [ErrUserUnknown], and the caller must either refuse the connection or ask for a secret.
//
// The user of a TCP socket is known only while the socket is established at both ends and a process has it
// open. A peer that sends and closes at once is therefore unknown: some kernels report user 0 for a socket
// that no process has open, and its port may already belong to another process. SameUser checks the far
// end first, then the near end. While the near end is established, no other socket can use the far end's
// address, so the socket found is the one at the other end.
//
// A process in a user namespace sees every user that its namespace does not map as the overflow uid
// (65534). Unless the namespace maps all users, as on an ordinary host, that uid never counts as the same
// user: see [CheckOwnUser].
//
// A socket that another process inherited, or was handed, keeps the user who made it. A program of the
// same user that forwards connections for others (a proxy, ssh -L) answers for them.
//
// # Structure
//
// [Dialler] and [Listener] implement the handshake without I/O: they take and return the bytes of
// messages. [Dial] and [Accept] perform the handshake on a connection. golaunch's agents use only TLS,
// with an [Identity] derived from the job's token.
package handshake
