import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;

/** An echo: the server waits with a Selector, each client is a thread with a blocking socket and compares. */
public class Echo {
    public static void main(String[] words) throws Exception {
        InetSocketAddress at = new InetSocketAddress(words[1], Integer.parseInt(words[2]));
        if (words[0].equals("server")) {
            serve(at);
        }
        List<Thread> clients = new ArrayList<>();
        int rounds = Integer.parseInt(words[4]);
        for (int n = 0; n < Integer.parseInt(words[3]); n++) {
            Random random = new Random(n);
            clients.add(new Thread(() -> use(at, rounds, random)));
        }
        clients.forEach(Thread::start);
        for (Thread client : clients) {
            client.join();
        }
    }

    static void serve(InetSocketAddress at) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(at, 200);
        listener.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(100_000).limit(0));
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (!buffer.hasRemaining() && channel.read(buffer.clear()) < 0) {
            channel.close();
            return;
        }
        if (key.isReadable()) {
            buffer.flip();
        }
        channel.write(buffer);
        key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    static void use(InetSocketAddress at, int rounds, Random random) {
        try (Socket socket = new Socket(at.getAddress(), at.getPort())) {
            for (int round = 0; round < rounds; round++) {
                byte[] sent = new byte[round % 10 == 0 ? 60_000 : 1 + random.nextInt(2000)];
                random.nextBytes(sent);
                socket.getOutputStream().write(sent);
                if (!Arrays.equals(sent, socket.getInputStream().readNBytes(sent.length))) {
                    throw new IOException("other bytes came back");
                }
            }
        } catch (IOException error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
