typedef int sl_placeholder_stream;
