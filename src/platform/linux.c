typedef int sl_placeholder_linux;
