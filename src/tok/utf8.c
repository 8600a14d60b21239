typedef int sl_placeholder_utf8;
